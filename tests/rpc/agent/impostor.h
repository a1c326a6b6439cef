// The other end of what an agent dials, played by hand, and what it logs of its ways.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/transport/shm/shm_transport.h>
#include <farspan/rpc/agent/agent.h>

#include "rpc/agent/stranger.h"

namespace farspan::testing {

// Who listens, and is no agent.
class Impostor {
 public:
  //   by       "unix", "shm", "tcp"
  //   address  for tcp
  explicit Impostor(transport::OnAccept on_accept, std::string_view by = "unix",
                    const std::string& address = "127.0.0.1") {
    reactor_.add(loop_);
    if (by == "tcp") transport_ = transport::make_tcp_transport(loop_, reactor_);
    if (by == "shm") transport_ = transport::make_shm_transport(loop_, reactor_);
    listener_ = transport_->listen(by == "tcp" ? address : "", std::move(on_accept));
  }
  ~Impostor() {
    listener_.reset();
    loop_->close();
    reactor_.stop();
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  std::string endpoint() const { return listener_->endpoint(); }

 private:
  net::Reactor reactor_;
  std::shared_ptr<net::Loop> loop_ = std::make_shared<net::Loop>(reactor_.timers());
  std::unique_ptr<transport::Transport> transport_ =
      transport::make_unix_transport(loop_, reactor_);
  std::unique_ptr<transport::Listener> listener_;
};

// What was accepted, and is kept without a word.
class Streams {
 public:
  transport::OnAccept keep() {
    return [this](std::unique_ptr<transport::Stream> stream) {
      const std::lock_guard lock(mutex_);
      streams_.push_back(std::move(stream));
    };
  }
  std::vector<std::shared_ptr<transport::Stream>> all() const {
    const std::lock_guard lock(mutex_);
    return streams_;
  }
  // The first of them, which is the caller's then; null: none has come.
  std::shared_ptr<transport::Stream> take() {
    const std::lock_guard lock(mutex_);
    if (streams_.empty()) return nullptr;
    auto first = std::move(streams_.front());
    streams_.erase(streams_.begin());
    return first;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<transport::Stream>> streams_;
};

// What is logged of routes while it is there.
class LinesAboutRoutes {
 public:
  LinesAboutRoutes() {
    set_log_level(LogLevel::kInfo);
    set_log_sink([logged = logged_](LogLevel level, std::string_view, std::string_view text) {
      if (text.find(" is reached through ") == std::string_view::npos) return;
      const std::lock_guard lock(logged->mutex);
      logged->lines.emplace_back(text);
      if (level >= LogLevel::kWarning) logged->warnings.emplace_back(text);
    });
  }
  ~LinesAboutRoutes() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  LinesAboutRoutes(const LinesAboutRoutes&) = delete;
  LinesAboutRoutes& operator=(const LinesAboutRoutes&) = delete;
  std::vector<std::string> all() const {
    const std::lock_guard lock(logged_->mutex);
    return logged_->lines;
  }
  // Those among them that are seen where nothing else was asked for.
  std::vector<std::string> warnings() const {
    const std::lock_guard lock(logged_->mutex);
    return logged_->warnings;
  }

 private:
  struct Logged {  // a sink may still be running when it has been replaced
    std::mutex mutex;
    std::vector<std::string> lines, warnings;
  };
  const std::shared_ptr<Logged> logged_ = std::make_shared<Logged>();
};

inline agent::AgentOptions options_of_w0(std::vector<std::string> transports,
                                         Millis connect_timeout) {
  agent::AgentOptions options;
  options.self = {"w0", 0};
  options.generation = "g1";
  options.transports = std::move(transports);
  options.connect_timeout = connect_timeout;
  return options;
}

// At the other end of what w0 has dialled, as `who`.
inline void welcome(Stranger& line, const wire::Hello& who) {
  ASSERT_TRUE(line.hear());  // its hello
  line.say(hello_frame(who, 2));
}
inline void answer_one(Stranger& line) {
  const auto request = line.hear();
  ASSERT_TRUE(request);
  ASSERT_EQ(request->header.kind, wire::Kind::kCall);
  line.say(RawFrame{.flags = 1, .request_id = request->header.request_id});
}

}  // namespace farspan::testing
