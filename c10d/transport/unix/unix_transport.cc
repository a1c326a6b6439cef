#include <farspan/c10d/transport/unix/unix_transport.h>

#include <utility>

#include <farspan/c10d/transport/socket_stream.h>
#include <farspan/c10d/transport/unix/local_transport.h>

namespace farspan::transport {
namespace {

std::unique_ptr<Stream> stream_over(net::OwnedDescriptor socket, std::string description) {
  return std::make_unique<SocketStream>(socket.release(), std::move(description));
}

}  // namespace

std::unique_ptr<Transport> make_unix_transport(std::shared_ptr<net::Loop> loop,
                                               net::Reactor& reactor) {
  LocalKind kind;
  kind.name = "unix";
  kind.dialled = stream_over;
  kind.accepted = [](net::OwnedDescriptor socket, std::string description,
                     const OnAccept& on_accept) {
    on_accept(stream_over(std::move(socket), std::move(description)));
  };
  return make_local_transport(std::move(kind), std::move(loop), reactor);
}

}  // namespace farspan::transport
