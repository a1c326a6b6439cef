#include <farspan/rpc/agent/greeting.h>

#include <new>
#include <utility>

namespace farspan::agent {

Greeting::Greeting(net::Reactor& reactor, std::unique_ptr<transport::Stream> stream,
                   std::unique_ptr<wire::FrameReader> reader, Handshake handshake, OnEnd on_end)
    : reactor_(reactor),
      descriptor_(stream->read_descriptor()),
      write_descriptor_(stream->write_descriptor()),
      stream_(std::move(stream)),
      reader_(std::move(reader)),
      handshake_(std::move(handshake)),
      on_end_(std::move(on_end)) {}

void Greeting::start(Deadline deadline) {
  const auto keep = shared_from_this();
  if (!deadline.is_never()) {
    timer_ = reactor_.timers().add(deadline.at(), [weak = weak_from_this()] {
      if (const auto strong = weak.lock()) {
        static_cast<Greeting&>(*strong).abort();
      }
    });
  }
  outbox_.open(*stream_);
  const Handshake::Action first = handshake_.begin();
  const bool left = first.send && send(*first.send) == Outbox::State::kLeft;
  reactor_.add(keep);  // a stream that is broken already says so when it is read
  if (left) reactor_.flush_when_writable(*this);
}

Outbox::State Greeting::send(const Handshake::Action::Send& message) {
  wire::OutFrame frame;
  frame.header.kind = message.kind;
  frame.meta = message.meta.span();
  return outbox_.send(frame);
}

// The reader is told through the stream, since only the holder of the role may end a greeting.
void Greeting::abort() {
  MutexLock lock(mutex_);
  expired_.store(true);
  if (stream_) stream_->shut();
}

bool Greeting::expect_input() noexcept {
  MutexLock lock(mutex_);
  return !stream_ || stream_->expect_input();
}

bool Greeting::expect_room() noexcept {
  MutexLock lock(mutex_);
  return !stream_ || stream_->expect_room();
}

bool Greeting::pump(net::Role& role) noexcept {
  if (!stream_) return false;
  std::vector<wire::InFrame> frames;
  std::optional<Error> failure;
  try {
    while (frames.empty() && !failure) {
      iovec places[2];
      const int count = reader_->want(places);
      const transport::IoResult result = stream_->read(places, count);
      if (result.status == transport::IoStatus::kWouldBlock) return false;
      if (result.status != transport::IoStatus::kOk) {
        failure = Error(expired_ ? Code::kTimeout : Code::kDisconnected,
                        expired_ ? "no handshake in time" : "closed during the handshake");
        break;
      }
      reader_->advance(result.bytes, frames);
    }
  } catch (const Error& e) {
    failure = e;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kOverloaded, "no memory for a handshake");
  }
  const auto keep = shared_from_this();
  reactor_.remove(*this);
  role.release();
  if (failure) {
    end(std::nullopt, std::move(failure), {});
    return true;
  }
  perform(handshake_.on_frame(frames.front()));
  return true;
}

// What has come behind the handshake is looked at when the peer is known.
void Greeting::perform(Handshake::Action action) {
  std::vector<wire::InFrame> rest;
  try {
    if (!action.failure) reader_->advance(0, rest);
  } catch (const Error& e) {
    action = {};
    action.failure = e;
  } catch (const std::bad_alloc&) {
    action = {};
    action.failure = Error(Code::kOverloaded, "no memory for what came behind a handshake");
  }
  if (action.send && send(*action.send) >= Outbox::State::kBroken && !action.failure) {
    action.peer.reset();
    action.failure = Error(Code::kDisconnected, "closed during the handshake");
  }
  end(std::move(action.peer), std::move(action.failure), std::move(rest));
}

void Greeting::end(std::optional<wire::Hello> peer, std::optional<Error> failure,
                   std::vector<wire::InFrame> rest) {
  if (const net::TimerId timer = timer_.exchange(0)) reactor_.timers().cancel(timer);
  Outcome outcome;
  outcome.unsent = outbox_.take();
  {
    MutexLock lock(mutex_);
    outcome.stream = std::move(stream_);
  }
  outcome.reader = std::move(reader_);
  outcome.frames = std::move(rest);
  outcome.peer = std::move(peer);
  outcome.failure = std::move(failure);
  std::exchange(on_end_, nullptr)(std::move(outcome));
}

}  // namespace farspan::agent
