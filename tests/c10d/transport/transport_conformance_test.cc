// Every transport, held to one suite.
#include "conformance/transport_suite.h"

#include <farspan/c10d/transport/loopback/loopback_transport.h>
#include <farspan/c10d/transport/shm/shm_transport.h>
#include <farspan/c10d/transport/tcp/tcp_transport.h>
#include <farspan/c10d/transport/unix/unix_transport.h>

namespace farspan::testing {
namespace {

std::unique_ptr<transport::Transport> make_loopback(std::shared_ptr<net::Loop>, net::Reactor&) {
  return transport::make_loopback_transport();
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportSuite,
                         ::testing::Values(TransportKind{"Shm", transport::make_shm_transport},
                                           TransportKind{"Unix", transport::make_unix_transport},
                                           TransportKind{"Tcp", transport::make_tcp_transport},
                                           TransportKind{"Loopback", make_loopback}),
                         name_of_transport);

}  // namespace
}  // namespace farspan::testing
