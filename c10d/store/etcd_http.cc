#include <farspan/c10d/store/etcd_http.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/server_connections.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {
namespace {

constexpr size_t kMaxAnswerBytes = kMaxStoreReplyBytes * 2;  // base64, and names
constexpr Millis kLongestPoll{60'000};
// Where libcurl thinks that the server is: connect() knows better, and waits for no name service
// longer than the deadline.
constexpr const char* kBase = "http://127.0.0.1";

// For the process, before any other use of libcurl here.
void init_curl() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

template <class Value>
void set(CURL* easy, CURLoption option, Value value) {
  if (curl_easy_setopt(easy, option, value) != CURLE_OK) {
    throw Error(Code::kInternal, "libcurl does not know option " + std::to_string(option));
  }
}

Code code_of(CURLcode result) {
  switch (result) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return Code::kUnavailable;
    case CURLE_OPERATION_TIMEDOUT:
      return Code::kTimeout;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return Code::kDisconnected;
    case CURLE_OUT_OF_MEMORY:
      return Code::kOverloaded;
    default:
      return Code::kCorrupt;
  }
}

}  // namespace

EtcdHttp::EtcdHttp(const net::HostPort& where) : where_(where) {
  init_curl();
  easy_.reset(curl_easy_init());
  if (!easy_) throw std::bad_alloc();
  CURL* easy = easy_.get();
  set(easy, CURLOPT_NOSIGNAL, 1L);
  set(easy, CURLOPT_PROXY, "");  // whatever the environment says of one
  set(easy, CURLOPT_ERRORBUFFER, reason_);
  set(easy, CURLOPT_WRITEFUNCTION, &EtcdHttp::receive);
  set(easy, CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(easy, CURLOPT_OPENSOCKETFUNCTION, &EtcdHttp::connect);
  set(easy, CURLOPT_OPENSOCKETDATA, static_cast<void*>(this));
  set(easy, CURLOPT_SOCKOPTFUNCTION, &EtcdHttp::is_connected);
  set(easy, CURLOPT_PREREQFUNCTION, &EtcdHttp::sends);
  set(easy, CURLOPT_PREREQDATA, static_cast<void*>(this));
  multi_ = curl_multi_init();
  if (!multi_) throw std::bad_alloc();
}

EtcdHttp::~EtcdHttp() {
  end();
  easy_.reset();
  if (multi_) curl_multi_cleanup(multi_);
}

size_t EtcdHttp::receive(char* bytes, size_t size, size_t count, void* self) {
  std::string& received = static_cast<EtcdHttp*>(self)->received_;
  if (received.size() + size * count > kMaxAnswerBytes) return 0;  // which ends it
  received.append(bytes, size * count);
  return size * count;
}

// libcurl would send a request again when the server closes the connection without an answer; but
// the server may have done what it was asked for.
curl_socket_t EtcdHttp::connect(void* self, curlsocktype, curl_sockaddr*) {
  auto& http = *static_cast<EtcdHttp*>(self);
  if (http.sending_) return CURL_SOCKET_BAD;
  try {
    return net::dial(http.where_, http.connect_by_).release();
  } catch (...) {  // there is C on the way
    http.failure_ = std::current_exception();
    return CURL_SOCKET_BAD;
  }
}

int EtcdHttp::is_connected(void*, curl_socket_t, curlsocktype) {
  return CURL_SOCKOPT_ALREADY_CONNECTED;
}

int EtcdHttp::sends(void* self, char*, char*, int, int) {
  static_cast<EtcdHttp*>(self)->sending_ = true;
  return CURL_PREREQFUNC_OK;
}

void EtcdHttp::begin(const std::string& path, const std::string& body, const std::string& token,
                     Deadline connect_by) {
  end();
  connect_by_ = connect_by;
  failure_ = nullptr;
  sent_ = body;
  received_.clear();
  looked_ = 0;
  result_.reset();
  sending_ = false;
  reason_[0] = '\0';
  curl_slist* headers = nullptr;
  const auto add = [&](const std::string& header) {
    curl_slist* longer = curl_slist_append(headers, header.c_str());
    if (!longer) {
      curl_slist_free_all(headers);
      throw std::bad_alloc();
    }
    headers = longer;
  };
  add("Host: " + where_.to_string());
  add("Content-Type: application/json");
  add("Expect:");  // no waiting for a permission to send what is long
  if (!token.empty()) add("Authorization: " + token);
  CURL* easy = easy_.get();
  set(easy, CURLOPT_HTTPHEADER, headers);
  headers_.reset(headers);
  set(easy, CURLOPT_URL, (kBase + path).c_str());
  set(easy, CURLOPT_POSTFIELDS, sent_.data());
  set(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(sent_.size()));
  if (curl_multi_add_handle(multi_, easy) != CURLM_OK) throw std::bad_alloc();
  active_ = true;
}

// Goes on with the request until it has ended or is `enough`; false at the deadline.
bool EtcdHttp::run(const std::function<bool()>& enough, Deadline deadline) {
  while (true) {
    int running = 0, left = 0;
    CURLMcode code = curl_multi_perform(multi_, &running);
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg == CURLMSG_DONE) result_ = message->data.result;
    }
    if (result_ || enough()) return true;
    if (deadline.expired()) return false;
    const auto pause = std::min<Clock::duration>(deadline.remaining(), kLongestPoll);
    const auto ms = static_cast<int>(std::chrono::ceil<Millis>(pause).count());
    if (code == CURLM_OK) code = curl_multi_poll(multi_, nullptr, 0, ms, nullptr);
    if (code != CURLM_OK) throw Error(Code::kInternal, curl_multi_strerror(code));
  }
}

void EtcdHttp::end() noexcept {
  if (active_) curl_multi_remove_handle(multi_, easy_.get());
  active_ = false;
  sent_ = std::string();
}

void EtcdHttp::check_result() const {
  if (*result_ == CURLE_OK) return;
  if (failure_) std::rethrow_exception(failure_);
  if (sending_ && *result_ == CURLE_COULDNT_CONNECT) {
    throw Error(Code::kDisconnected, "the other side closed the connection");
  }
  if (*result_ == CURLE_WRITE_ERROR) {
    throw Error(Code::kInvalidArgument, "the answer is longer than 512 MiB")
        .advice("ask for fewer keys at once");
  }
  const Code code = code_of(*result_);
  const char* why = reason_[0] ? reason_ : curl_easy_strerror(*result_);
  throw code == Code::kCorrupt ? not_the_server(why) : Error(code, why);
}

EtcdHttp::Answer EtcdHttp::post(const std::string& path, const std::string& body,
                                const std::string& token, Deadline deadline) {
  if (deadline.expired()) throw out_of_time();
  begin(path, body, token, deadline);
  const bool ended = run([] { return false; }, deadline);
  end();
  if (!ended) throw Error(Code::kTimeout, "no answer");
  check_result();
  return {status(), std::move(received_)};
}

void EtcdHttp::open(const std::string& path, const std::string& body, const std::string& token,
                    Deadline connect_by) {
  begin(path, body, token, connect_by);
}

long EtcdHttp::status() const {
  long status = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

std::optional<std::string> EtcdHttp::line(Deadline deadline) {
  size_t end_of_line = std::string::npos;
  const auto whole = [&] {
    end_of_line = received_.find('\n', looked_);
    looked_ = received_.size();
    return end_of_line != std::string::npos;
  };
  if (!whole()) {
    if (!run(whole, deadline)) return std::nullopt;
    if (end_of_line == std::string::npos && !whole()) {  // it has ended
      check_result();
      if (received_.empty()) return std::nullopt;
      end_of_line = received_.size();
    }
  }
  std::string line = received_.substr(0, end_of_line);
  received_.erase(0, std::min(end_of_line + 1, received_.size()));
  looked_ = 0;
  return line;
}

}  // namespace farspan::dist
