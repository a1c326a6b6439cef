#include <farspan/c10d/store/etcd_client.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {
namespace {

using Json = nlohmann::json;

constexpr const char* kServer = "etcd";

// Numbers of gRPC that the gateway passes on as "code".
constexpr int kGrpcInvalid = 3, kGrpcLate = 4, kGrpcDenied = 7, kGrpcExhausted = 8,
              kGrpcPrecondition = 9, kGrpcUnavailable = 14, kGrpcUnauthenticated = 16;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) {
      group = group << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    }
    const size_t known = std::min<size_t>(bytes.size() - i, 3);
    for (size_t j = 0; j < 4; ++j) {
      text += j <= known ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::string from_base64(std::string_view text) {
  static const auto values = [] {
    std::array<int8_t, 256> table;
    table.fill(-1);
    for (size_t i = 0; i < kDigits.size(); ++i) {
      table[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
    }
    return table;
  }();
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int bits = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (const char c : text) {
    const int value = values[static_cast<unsigned char>(c)];
    if (value < 0) throw not_the_server("a value is not base64");
    group = group << 6 | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(group >> bits & 255);
  }
  return bytes;
}

Json parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw not_the_server("the answer is not JSON of etcd's gateway");
  return json;
}

// What is 0, false or empty is left out of the answers; null where it is.
const Json* find(const Json& json, const char* name, Json::value_t type) {
  const auto it = json.find(name);
  if (it == json.end()) return nullptr;
  if (it->type() != type) {
    throw not_the_server("'" + std::string(name) + "' in the answer is of another type");
  }
  return &*it;
}

std::string text_at(const Json& json, const char* name) {
  const Json* text = find(json, name, Json::value_t::string);
  return text ? text->get<std::string>() : std::string();
}

bool flag_at(const Json& json, const char* name) {
  const Json* flag = find(json, name, Json::value_t::boolean);
  return flag && flag->get<bool>();
}

const Json& object_at(const Json& json, const char* name) {
  static const Json& none = *new Json(Json::object());
  const Json* object = find(json, name, Json::value_t::object);
  return object ? *object : none;
}

const Json& array_at(const Json& json, const char* name) {
  static const Json& none = *new Json(Json::array());
  const Json* array = find(json, name, Json::value_t::array);
  return array ? *array : none;
}

int64_t number_at(const Json& json, const char* name) {
  const std::string text = text_at(json, name);  // 64 bits travel as text
  if (text.empty()) return 0;
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || read != end || number < 0) {
    throw not_the_server("'" + std::string(name) + "' in the answer is no number");
  }
  return number;
}

Error refused(const Json& answer, long status) {
  const std::string text = text_at(answer, answer.contains("message") ? "message" : "error");
  const auto it = answer.find("code");
  const auto code = it != answer.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  const auto error = [&](Code kind, const char* advice) {
    return Error(kind, "etcd says: " + text.substr(0, 300)).advice(advice);
  };
  if (has("too large") || has("larger than max")) {
    return error(Code::kInvalidArgument,
                 "store less, or start etcd with a larger --max-request-bytes (16777216 takes all "
                 "that a store may hold)");
  }
  if (has("too many operations")) {
    return error(Code::kInvalidArgument, "start etcd with --max-txn-ops=128, as it is by itself");
  }
  if (has("authentication failed")) {
    return error(Code::kInvalidArgument, "correct the user or the password");
  }
  if (has("authentication is not enabled")) {
    return error(Code::kInvalidArgument, "this server wants no password: give no user and none");
  }
  if (has("user name is empty") || has("user name not found") || code == kGrpcUnauthenticated) {
    return error(Code::kInvalidArgument,
                 "give user and password: etcd://user@host:port and FARSPAN_STORE_PASSWORD_FILE");
  }
  if (code == kGrpcDenied) {
    return error(
        Code::kInvalidArgument,
        "give the user's role the right to read and write keys that begin with 'farspan:'");
  }
  if (code == kGrpcExhausted) {
    return error(Code::kOverloaded, "give etcd more room (--quota-backend-bytes) and compact it");
  }
  // It may be done yet.
  if (code == kGrpcLate || has("request timed out") || has("leader changed") ||
      has("server stopped")) {
    return error(Code::kDisconnected, "has etcd lost its leader or its quorum?");
  }
  if (code == kGrpcUnavailable) return error(Code::kUnavailable, "has etcd lost its quorum?");
  if (code == kGrpcInvalid || code == kGrpcPrecondition) {
    return error(Code::kInvalidArgument, "farspan needs etcd 3.4 or newer");
  }
  if (text.empty() && status >= 502 && status <= 504) {
    return Error(Code::kUnavailable, "a proxy says HTTP " + std::to_string(status))
        .advice("is etcd running behind it?");
  }
  if (text.empty()) return not_the_server("the answer is HTTP " + std::to_string(status));
  return error(Code::kUnavailable, "its log may say more");
}

Json to_json(const EtcdRange& range) {
  Json json = {{"key", to_base64(range.first)}};
  if (!range.end.empty()) json["range_end"] = to_base64(range.end);
  return json;
}

Json to_json(const std::vector<EtcdOperation>& operations) {
  Json all = Json::array();
  for (const EtcdOperation& operation : operations) {
    Json body = to_json(operation.range);
    switch (operation.kind) {
      case EtcdOperation::Kind::kPut:
        body["value"] = to_base64(operation.value);
        all.push_back({{"request_put", std::move(body)}});
        break;
      case EtcdOperation::Kind::kDelete:
        all.push_back({{"request_delete_range", std::move(body)}});
        break;
      case EtcdOperation::Kind::kGet:
        body["keys_only"] = operation.keys_only;
        body["count_only"] = operation.count_only;
        body["limit"] = std::to_string(operation.limit);
        body["revision"] = std::to_string(operation.revision);
        all.push_back({{"request_range", std::move(body)}});
    }
  }
  return all;
}

bool is_in(const EtcdRange& range, const std::string& key) {
  return range.end.empty() ? key == range.first : key >= range.first && key < range.end;
}

EtcdResult to_result(const EtcdOperation& operation, const Json& response) {
  const auto part = [&](const char* name) -> const Json& {
    const Json* found = find(response, name, Json::value_t::object);
    if (!found) throw not_the_server("the answer is to another question");
    return *found;
  };
  EtcdResult result;
  if (operation.kind == EtcdOperation::Kind::kPut) {
    part("response_put");
    return result;
  }
  if (operation.kind == EtcdOperation::Kind::kDelete) {
    result.count = number_at(part("response_delete_range"), "deleted");
    return result;
  }
  const Json& range = part("response_range");
  result.count = number_at(range, "count");
  for (const Json& entry : array_at(range, "kvs")) {
    std::string key = from_base64(text_at(entry, "key"));
    if (!is_in(operation.range, key) ||
        (!result.entries.empty() && key <= result.entries.back().key)) {
      throw not_the_server("the answer has a key that was not asked for");
    }
    result.entries.push_back(
        {std::move(key), from_base64(text_at(entry, "value")), number_at(entry, "mod_revision")});
  }
  return result;
}

// Whether another token may help.
bool is_of_the_token(const Error& error) {
  return error.message().find("invalid auth token") != std::string::npos ||
         error.message().find("revision of auth store is old") != std::string::npos;
}

}  // namespace

bool is_compacted(const Error& error) {
  return error.message().find("has been compacted") != std::string::npos;
}

EtcdRange etcd_keys_with(const std::string& prefix) {
  std::string end = prefix;
  ++end.back();
  return {prefix, end};
}

EtcdWatch::Seen EtcdWatch::wait(Deadline deadline) {
  while (true) {
    std::optional<std::string> line;
    try {
      line = http_->line(deadline);
    } catch (const Error& error) {
      throw advise_about(kServer, error);
    }
    if (!line) return http_->ended() ? Seen::kEnd : Seen::kNothing;
    if (http_->status() != 200) return Seen::kEnd;
    if (line->empty()) continue;
    const Json answer = parse(*line);
    const Json& result = object_at(answer, "result");
    if (!array_at(result, "events").empty()) return Seen::kChange;
    if (result.empty() || flag_at(result, "canceled")) return Seen::kEnd;
  }
}

EtcdClient::EtcdClient(net::HostPort where, std::string user, std::string password)
    : where_(std::move(where)), user_(std::move(user)), password_(std::move(password)) {}

std::string EtcdClient::post(const std::string& path, const std::string& body,
                             const std::string& token, Deadline deadline) {
  auto http = idle_.take();
  if (!http) http = std::make_unique<EtcdHttp>(where_);
  EtcdHttp::Answer answer;
  try {
    answer = http->post(path, body, token, deadline);
  } catch (const Error& error) {
    throw advise_about(kServer, error);
  }
  idle_.keep(std::move(http));
  if (answer.status == 200) return std::move(answer.body);
  const Json said = Json::parse(answer.body, nullptr, false);
  throw refused(said.is_object() ? said : Json::object(), answer.status);
}

// The token of the login, which is done where there is none yet, or only `not_this`.
std::string EtcdClient::token(const std::string& not_this, Deadline deadline) {
  if (user_.empty()) return {};
  {
    MutexLock lock(mutex_);
    if (token_ != not_this) return token_;
  }
  // Several threads may do so at once; each token is good.
  const Json login = {{"name", user_}, {"password", password_}};
  std::string answer;
  try {
    answer = post("/v3/auth/authenticate",
                  login.dump(-1, ' ', true, Json::error_handler_t::replace), {}, deadline);
  } catch (const Error& error) {
    // Whoever answers may quote what he was asked.
    if (password_.empty() || error.message().find(password_) == std::string::npos) throw;
    throw Error(error.code(), "the login is refused").advice(error.advice());
  }
  std::string got = text_at(parse(answer), "token");
  if (got.empty()) throw not_the_server("the login gave no token");
  MutexLock lock(mutex_);
  token_ = got;
  return got;
}

EtcdOutcome EtcdClient::transact(const std::vector<EtcdCondition>& conditions,
                                 const std::vector<EtcdOperation>& success,
                                 const std::vector<EtcdOperation>& failure, Deadline deadline) {
  Json compare = Json::array();
  for (const EtcdCondition& condition : conditions) {
    compare.push_back({{"target", "MOD"},
                       {"result", "EQUAL"},
                       {"key", to_base64(condition.key)},
                       {"mod_revision", std::to_string(condition.mod_revision)}});
  }
  const Json request = {{"compare", std::move(compare)},
                        {"success", to_json(success)},
                        {"failure", to_json(failure)}};
  const std::string body = request.dump();
  std::string last_token = token({}, deadline);
  std::string text;
  try {
    text = post("/v3/kv/txn", body, last_token, deadline);
  } catch (const Error& error) {
    // It has expired, or the server was started again: nothing was done, so it may be done now.
    if (last_token.empty() || !is_of_the_token(error)) throw;
    text = post("/v3/kv/txn", body, token(last_token, deadline), deadline);
  }
  const Json answer = parse(text);
  EtcdOutcome outcome;
  outcome.succeeded = flag_at(answer, "succeeded");
  outcome.revision = number_at(object_at(answer, "header"), "revision");
  if (outcome.revision == 0 || (conditions.empty() && !outcome.succeeded)) {
    throw not_the_server("the answer is of no transaction");
  }
  const auto& operations = outcome.succeeded ? success : failure;
  const Json& responses = array_at(answer, "responses");
  if (responses.size() != operations.size()) {
    throw not_the_server("the answer has another number of results");
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    outcome.results.push_back(to_result(operations[i], responses[i]));
  }
  return outcome;
}

EtcdWatch EtcdClient::watch(const std::vector<EtcdRange>& ranges, int64_t revision,
                            Deadline deadline) {
  std::string body;
  for (const EtcdRange& range : ranges) {
    Json create = to_json(range);
    create["start_revision"] = std::to_string(revision);
    create["filters"] = {"NODELETE"};
    body += Json({{"create_request", std::move(create)}}).dump();
  }
  auto http = std::make_unique<EtcdHttp>(where_);
  http->open("/v3/watch", body, token({}, deadline), deadline);
  return EtcdWatch(std::move(http));
}

}  // namespace farspan::dist
