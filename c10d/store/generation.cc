#include <farspan/c10d/store/generation.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/host.h>

namespace farspan::dist {
namespace {

constexpr Millis kFirstPause{1};
constexpr Millis kLongestPause{50};
// How long rank 0, once it cannot agree with one rank, stays until the others know: some come
// later, and the store may go with it.
constexpr Millis kTellingTime{5000};
constexpr char kRefused = '!';  // in front of a reason, in place of what was hoped for

std::string nonce_key(int rank) { return "generation/nonce/" + std::to_string(rank); }
std::string answer_key(int rank, const std::string& nonce) {
  return "generation/answer/" + std::to_string(rank) + "/" + nonce;
}
std::string ack_key(const std::string& name, int rank) {
  return "generation/" + name + "/ack/" + std::to_string(rank);
}
std::string told_key(const std::string& name, int rank) {
  return "generation/" + name + "/told/" + std::to_string(rank);
}
std::string go_key(const std::string& name) { return "generation/" + name + "/go"; }
constexpr const char* kLeaderKey = "generation/leader";

std::string random_hex() {
  std::random_device random;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

// Random, and tells a person where it is from.
std::string make_nonce() { return random_hex() + "@" + net::process_name(); }

std::string place_of(const std::string& nonce) {
  const size_t at = nonce.find('@');
  return at == std::string::npos ? "unknown" : nonce.substr(at + 1);
}

std::optional<std::string> find(Store& store, const std::string& key) {
  // Nobody stores this, so nothing is changed.
  static const std::string absent = "(no value of " + random_hex() + ")";
  return store.compare_set(key, absent, absent);
}

// Returns at once when the key comes, and after a while in any case.
void pause_for(Store& store, const std::string& key, Millis* pause, Deadline deadline) {
  const Millis left =
      std::chrono::ceil<Millis>(std::min<Clock::duration>(deadline.remaining(), *pause));
  try {
    if (left.count() > 0) store.wait({key}, left);
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  *pause = std::min(*pause * 2, kLongestPause);
}

std::string join(const std::vector<std::string>& texts, const char* between) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : between) + text;
  return all;
}

Error rank_is_taken(int rank, const std::string& nonce) {
  return Error(Code::kAlreadyExists,
               "another worker has rank " + std::to_string(rank) + ", too: " + place_of(nonce))
      .advice("give each worker a rank of its own");
}

Error sizes_differ(const std::string& how) {
  return Error(Code::kInvalidArgument, how).advice("give all workers the same WORLD_SIZE");
}

// Rank 0's side.
class Leader {
 public:
  Leader(Store& store, int world_size)
      : store_(store),
        world_size_(world_size),
        name_("g" + random_hex()),
        nonce_(make_nonce()),
        answered_(static_cast<size_t>(world_size)),
        acks_(static_cast<size_t>(world_size)),
        come_(static_cast<size_t>(world_size)) {}

  std::string lead(Deadline deadline) {
    store_.set(kLeaderKey, nonce_);
    Millis pause = kFirstPause;
    while (true) {
      int missing = 0;
      for (int rank = world_size_ - 1; rank > 0; --rank) {
        if (!attend(rank, deadline)) missing = rank;
      }
      hold_rank();
      if (missing == 0) break;
      if (deadline.expired()) throw too_late();
      pause_for(store_, ack_key(name_, missing), &pause, deadline);
    }
    store_.set(go_key(name_), join({acks_.begin() + 1, acks_.end()}, "\n"));
    tidy();
    return name_;
  }

 private:
  // Answers the rank's nonce. True once it has acknowledged.
  bool attend(int rank, Deadline deadline) {
    answer(rank);
    const auto& answered = answered_[static_cast<size_t>(rank)];
    auto& ack = acks_[static_cast<size_t>(rank)];
    ack = find(store_, ack_key(name_, rank)).value_or("");
    if (!ack.empty() && ack.front() == kRefused) {
      refuse("rank " + std::to_string(rank) + ack.substr(1), deadline);
    }
    come_[static_cast<size_t>(rank)] = !answered.empty() && ack == answered.back();
    return come_[static_cast<size_t>(rank)];
  }

  // Also one that has acknowledged: it may have died, and come again.
  void answer(int rank) {
    const auto nonce = find(store_, nonce_key(rank));
    if (!nonce) return;
    auto& answered = answered_[static_cast<size_t>(rank)];
    if (answered.empty() || answered.back() != *nonce) answered.push_back(*nonce);
    // Again where a rank 0 of an earlier start, on its way out, has answered after this one.
    const std::string answer = name_ + " " + std::to_string(world_size_);
    const std::string key = answer_key(rank, *nonce);
    if (find(store_, key) != answer) store_.set(key, answer);
  }

  // Nobody goes. Throws when all know, or it is too late for that.
  [[noreturn]] void refuse(std::string why, Deadline deadline) {
    why += ", and rank 0 one of " + std::to_string(world_size_);
    store_.set(go_key(name_), kRefused + why);
    const Deadline until = earlier(deadline, Deadline::after(kTellingTime));
    Millis pause = kFirstPause;
    while (const int untold = answer_untold()) {
      hold_rank();
      if (until.expired()) break;
      pause_for(store_, told_key(name_, untold), &pause, until);
    }
    throw sizes_differ(why);
  }

  // The first rank that does not know that nobody goes; 0: all do.
  int answer_untold() {
    int untold = 0;
    for (int rank = world_size_ - 1; rank > 0; --rank) {
      answer(rank);
      if (!find(store_, told_key(name_, rank))) untold = rank;
    }
    return untold;
  }

  // Of two workers with rank 0, the one that came first gives way.
  void hold_rank() {
    const auto holder = find(store_, kLeaderKey);
    if (holder != nonce_) throw rank_is_taken(0, holder.value_or(""));
  }

  void tidy() {
    for (int rank = 1; rank < world_size_; ++rank) {
      store_.delete_key(ack_key(name_, rank));
      // That of the one who came is his to delete.
      const auto& answered = answered_[static_cast<size_t>(rank)];
      for (size_t i = 0; i + 1 < answered.size(); ++i) {
        store_.delete_key(answer_key(rank, answered[i]));
      }
    }
  }

  Error too_late() const {
    std::vector<std::string> missing;
    for (int rank = 1; rank < world_size_; ++rank) {
      if (!come_[static_cast<size_t>(rank)]) missing.push_back(std::to_string(rank));
    }
    const std::string who = (missing.size() == 1 ? "rank " : "ranks ") + join(missing, ", ");
    return Error(Code::kTimeout, who + " of " + std::to_string(world_size_) + " did not come")
        .advice("start them, or look at their errors; has each worker a RANK of its own?");
  }

  Store& store_;
  const int world_size_;
  const std::string name_;
  const std::string nonce_;
  std::vector<std::vector<std::string>> answered_;  // nonces, by rank
  std::vector<std::string> acks_;                   // by rank; empty: none
  std::vector<bool> come_;                          // by rank
};

// Every other rank's side.
class Follower {
 public:
  Follower(Store& store, int rank, int world_size)
      : store_(store),
        rank_(rank),
        world_size_(world_size),
        nonce_(make_nonce()),
        answer_key_(answer_key(rank, nonce_)) {}

  std::string follow(Deadline deadline) {
    store_.set(nonce_key(rank_), nonce_);
    Millis pause = kFirstPause;
    while (!is_on()) {
      if (const auto answer = find(store_, answer_key_)) {
        const std::string name = answer->substr(0, answer->find(' '));
        if (name != name_) {
          // Rank 0 may have begun the next start already, after it said "go" for this one.
          if (is_on()) break;
          acknowledge(name, *answer);
          continue;
        }
      }
      hold_rank();
      if (deadline.expired()) throw too_late();
      pause_for(store_, name_.empty() ? answer_key_ : go_key(name_), &pause, deadline);
    }
    store_.delete_key(answer_key_);
    return name_;
  }

 private:
  // Whether all have come, and this worker is one of them.
  bool is_on() {
    if (name_.empty()) return false;
    const auto go = find(store_, go_key(name_));
    if (!go) return false;
    if (!go->empty() && go->front() == kRefused) {
      tell(told_key(name_, rank_), "");
      throw sizes_differ(go->substr(1));
    }
    size_t begin = 0;
    for (int rank = 1; rank < rank_; ++rank) begin = go->find('\n', begin) + 1;
    const std::string mine = go->substr(begin, go->find('\n', begin) - begin);
    if (mine == nonce_) return true;
    throw rank_is_taken(rank_, mine);
  }

  // Of two workers with one rank, the one that came first gives way. A store that knows nothing of
  // this one is another than he has told: that of an earlier start has ended meanwhile.
  void hold_rank() {
    const auto holder = find(store_, nonce_key(rank_));
    if (!holder) store_.set(nonce_key(rank_), nonce_);
    if (holder && *holder != nonce_) throw rank_is_taken(rank_, *holder);
    if (name_.empty()) return;
    const auto ack = find(store_, ack_key(name_, rank_));
    const bool is_held = ack ? *ack == nonce_ : find(store_, go_key(name_)).has_value();
    if (!is_held) store_.set(ack_key(name_, rank_), nonce_);
  }

  void acknowledge(const std::string& name, const std::string& answer) {
    const std::string size = answer.substr(name.size() + 1);
    if (size != std::to_string(world_size_)) {
      const std::string why = " has a WORLD_SIZE of " + std::to_string(world_size_);
      tell(told_key(name, rank_), "");
      tell(ack_key(name, rank_), kRefused + why);
      throw sizes_differ("rank " + std::to_string(rank_) + why + ", and rank 0 one of " + size);
    }
    store_.set(ack_key(name, rank_), nonce_);
    name_ = name;
  }

  // The last thing that rank 0 waits for: it may take its store away as soon as it has it, before
  // the store has answered.
  void tell(const std::string& key, const std::string& value) {
    try {
      store_.set(key, value);
    } catch (const Error& error) {
      if (error.code() != Code::kDisconnected && error.code() != Code::kUnavailable) throw;
    }
  }

  Error too_late() const {
    if (name_.empty()) {
      return Error(Code::kTimeout, "rank 0 did not answer")
          .advice(
              "start it, or look at its errors; if it runs, has the job begun without this "
              "worker?");
    }
    return Error(Code::kTimeout, "not all of the " + std::to_string(world_size_) + " workers came")
        .advice("rank 0's error names those that are missing");
  }

  Store& store_;
  const int rank_;
  const int world_size_;
  const std::string nonce_;
  const std::string answer_key_;
  std::string name_;  // that rank 0 has answered last
};

}  // namespace

std::string agree_on_generation(Store& store, int rank, int world_size, Deadline deadline) {
  const TimePoint start = Clock::now();
  try {
    if (world_size < 1 || rank < 0 || rank >= world_size) {
      throw Error(Code::kInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                              std::to_string(world_size) + " workers");
    }
    const auto own = store.clone();  // with a timeout of its own
    if (!deadline.is_never()) {
      own->set_timeout(std::max(std::chrono::ceil<Millis>(deadline.remaining()), Millis{1}));
    }
    if (rank == 0) return Leader(*own, world_size).lead(deadline);
    return Follower(*own, rank, world_size).follow(deadline);
  } catch (Error& error) {
    if (error.operation().empty()) {
      error.operation("meet the other workers at " + store.address()).elapsed(Clock::now() - start);
    }
    throw;
  }
}

}  // namespace farspan::dist
