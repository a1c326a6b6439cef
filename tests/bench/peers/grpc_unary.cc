// gRPC's side of `./dev bench rpc`: unary calls of bytes, through a unix socket (`shm`: gRPC has no
// shared memory) or TCP. tests/bench/README.md says what each case is.
//   grpc_unary --transport shm|tcp
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "bench/figures.h"
#include "unary.grpc.pb.h"

namespace bench {
namespace {

using unary::Payload;
using unary::Peer;

constexpr size_t kSmall = 8, kWarmUp = 500, kCalls = 5'000;

// A small payload comes back, of a large one the number of bytes.
class Service final : public Peer::Service {
  grpc::Status Send(grpc::ServerContext*, const Payload* in, Payload* out) override {
    out->set_data(in->data().size() <= kSmall ? in->data() : std::to_string(in->data().size()));
    return grpc::Status::OK;
  }
};

void serve(const std::string& address, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server || write(ready, &port, sizeof port) != sizeof port) _exit(1);
  server->Wait();
}

void check(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "grpc_unary: %s\n", status.error_message().c_str());
  std::exit(1);
}

// Begins a small call, and waits for any one when `most` are unanswered.
class CallsInFlight {
 public:
  CallsInFlight(Peer::Stub& stub, size_t most) : stub_(stub), most_(most) {
    payload_.set_data(std::string(kSmall, 'x'));
  }
  CallsInFlight(const CallsInFlight&) = delete;
  CallsInFlight& operator=(const CallsInFlight&) = delete;
  ~CallsInFlight() {
    while (unanswered_ > 0) end_one();
  }
  void operator()() {
    auto* const call = new Call;
    call->reader = stub_.AsyncSend(&call->context, payload_, &queue_);
    call->reader->Finish(&call->answer, &call->status, call);
    if (++unanswered_ == most_) end_one();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    Payload answer;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Payload>> reader;
  };
  void end_one() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    check(call->status);
    --unanswered_;
  }

  Peer::Stub& stub_;
  const size_t most_;
  Payload payload_;
  grpc::CompletionQueue queue_;
  size_t unanswered_ = 0;
};

class Caller {
 public:
  Caller(const std::string& address, std::string transport) : transport_(std::move(transport)) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = Peer::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void small_calls() const {
    const auto call = [&] { send(kSmall); };
    times_of(kWarmUp, call);
    const auto times = times_of(kCalls, call);
    report("small call p50 " + transport_, median(times), "us");
    if (transport_ != "shm") return;
    report("small call p99 shm", percentile(times, 0.99), "us");
    report("small call after a pause p50 shm", median(times_after_pauses(kCallsAfterPauses, call)),
           "us");
    report("calls per second 1 thread shm", rate_of_threads(1, call), "calls/s");
    report("calls per second 8 threads shm", rate_of_threads(kThreads, call), "calls/s");
  }

  void calls_in_flight() const {
    const auto rate = [&](int threads) {
      const size_t each = kInFlight / static_cast<size_t>(threads);
      return rate_of_each(threads, [&] { return CallsInFlight(*stub_, each); });
    };
    report("calls per second 128 in flight shm", rate(1), "calls/s");
    report("calls per second 128 in flight of 8 threads shm", rate(kThreads), "calls/s");
  }

  // The payload is made for each call anew, as it is part of the message; that counts.
  void tensors() const {
    for (const TensorSize& size : kTensorSizes) {
      const auto call = [&] { send(size.bytes); };
      times_of(2, call);
      const auto times = times_of(size.calls, call);
      report_tensor(size, transport_, times);
      if (size.bytes == kTensorSizes.back().bytes) report_hand_over(transport_, times);
    }
  }

 private:
  void send(size_t bytes) const {
    Payload in, out;
    in.set_data(std::string(bytes, 'x'));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    check(stub_->Send(&context, in, &out));
  }

  const std::string transport_;
  std::unique_ptr<Peer::Stub> stub_;
};

int run(const std::string& transport) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("grpc_unary-" + std::to_string(getpid()));
  const bool by_tcp = transport == "tcp";
  if (!by_tcp) std::filesystem::create_directory(folder);
  std::string address = by_tcp ? "127.0.0.1:0" : "unix:" + (folder / "socket").string();
  int ends[2], port = 0;
  if (pipe(ends) != 0) return 1;
  const pid_t server = fork();  // before gRPC has threads
  if (server == 0) serve(address, ends[1]);
  close(ends[1]);
  const bool serves = read(ends[0], &port, sizeof port) == sizeof port;
  if (by_tcp) address = "127.0.0.1:" + std::to_string(port);
  if (serves) {
    const Caller caller(address, transport);
    caller.small_calls();
    if (!by_tcp) caller.calls_in_flight();
    caller.tensors();
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  if (!by_tcp) std::filesystem::remove_all(folder);
  return serves ? 0 : 1;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "", transport = argc > 2 ? argv[2] : "";
  if (option != "--transport" || (transport != "shm" && transport != "tcp")) {
    std::fprintf(stderr, "usage: grpc_unary --transport shm|tcp\n");
    return 2;
  }
  return bench::run(transport);
}
