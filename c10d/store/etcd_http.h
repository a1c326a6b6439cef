// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// EtcdHttp: requests to etcd's gateway, one after another over one connection, with deadlines.
// libcurl speaks HTTP.
#pragma once

#include <curl/curl.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>

namespace farspan::dist {

// Threading: one thread at a time.
class EtcdHttp {
 public:
  explicit EtcdHttp(const net::HostPort& where);
  ~EtcdHttp();
  EtcdHttp(const EtcdHttp&) = delete;
  EtcdHttp& operator=(const EtcdHttp&) = delete;

  // Always: libcurl looks itself, and connects anew where the server has gone since.
  bool is_idle() const noexcept { return true; }

  struct Answer {
    long status = 0;  // of HTTP
    std::string body;
  };
  // A request is sent once at most: one that may have reached a server that then went away is not
  // sent again; none is sent after the deadline.
  //   token   of the login; empty: none
  //   throws  Error kUnavailable, kOverloaded (no descriptor left), kTimeout, kDisconnected,
  //           kCorrupt (there is something else)
  Answer post(const std::string& path, const std::string& body, const std::string& token,
              Deadline deadline);

  // Begins a request whose answer is a stream of lines, and this connection's last.
  //   connect_by  when the first line() that waits must have found the server
  void open(const std::string& path, const std::string& body, const std::string& token,
            Deadline connect_by);
  // Nothing at the deadline, or when the server has ended the stream. Throws as post(), also
  // kDisconnected where the stream breaks off.
  std::optional<std::string> line(Deadline deadline);
  bool ended() const { return result_.has_value(); }
  long status() const;  // of HTTP, once there was a line

 private:
  static size_t receive(char* bytes, size_t size, size_t count, void* self);
  static curl_socket_t connect(void* self, curlsocktype purpose, curl_sockaddr* address);
  static int is_connected(void* self, curl_socket_t fd, curlsocktype purpose);
  static int sends(void* self, char* remote, char* local, int remote_port, int local_port);

  void begin(const std::string& path, const std::string& body, const std::string& token,
             Deadline connect_by);
  bool run(const std::function<bool()>& enough, Deadline deadline);
  void end() noexcept;
  void check_result() const;

  struct Free {
    void operator()(CURL* easy) const noexcept { curl_easy_cleanup(easy); }
    void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
  };

  const net::HostPort where_;
  CURLM* multi_ = nullptr;
  std::unique_ptr<CURL, Free> easy_;
  std::unique_ptr<curl_slist, Free> headers_;
  char reason_[CURL_ERROR_SIZE] = "";
  // Of the request under way.
  Deadline connect_by_;
  std::exception_ptr failure_;  // of connecting
  std::string sent_;            // may hold a password
  std::string received_;
  size_t looked_ = 0;  // at so much of it, for the end of a line
  bool active_ = false;
  bool sending_ = false;            // a connection was there, and the request may have been sent
  std::optional<CURLcode> result_;  // once it has ended
};

}  // namespace farspan::dist
