#include "support/faults.h"

#include <utility>

namespace farspan::testing {

Faults::Id Faults::add(Rule rule) {
  rules_.push_back(std::move(rule));
  return rules_.size() - 1;
}

Faults::Id Faults::drop(std::optional<wire::Kind> kind, Match match, Loss loss) {
  return add({Type::kDrop, false, kind, std::move(match), loss});
}
Faults::Id Faults::duplicate(std::optional<wire::Kind> kind, Match match, Micros copy_after) {
  return add({Type::kDuplicate, false, kind, std::move(match), Loss::kSilent, copy_after});
}
Faults::Id Faults::delay(std::optional<wire::Kind> kind, Micros by, Match match) {
  return add({Type::kDelay, false, kind, std::move(match), Loss::kSilent, by});
}
Faults::Id Faults::fail_in_flight(std::optional<wire::Kind> kind, Match match,
                                  Micros arrives_after) {
  return add({Type::kFailInFlight, false, kind, std::move(match), Loss::kSilent, arrives_after});
}
Faults::Id Faults::drop_reply(std::optional<wire::Kind> kind, Match match, Loss loss) {
  return add({Type::kDrop, true, kind, std::move(match), loss});
}
Faults::Id Faults::duplicate_reply(std::optional<wire::Kind> kind, Match match, Micros copy_after) {
  return add({Type::kDuplicate, true, kind, std::move(match), Loss::kSilent, copy_after});
}
Faults::Id Faults::delay_reply(std::optional<wire::Kind> kind, Micros by, Match match) {
  return add({Type::kDelay, true, kind, std::move(match), Loss::kSilent, by});
}

void Faults::remove(Id id) { rules_.at(id).removed = true; }
void Faults::clear() {
  for (Rule& rule : rules_) rule.removed = true;
}

bool Faults::strikes(Rule& rule, const Passing& frame, SeededRandom& random) {
  const Match& match = rule.match;
  if (rule.removed || rule.reply != frame.reply) return false;
  if (rule.kind && *rule.kind != frame.kind) return false;
  if (!match.from.empty() && match.from != frame.from) return false;
  if (!match.to.empty() && match.to != frame.to) return false;
  if (++rule.seen < match.nth || rule.hits >= match.times) return false;
  if (!random.chance(match.probability)) return false;
  ++rule.hits;
  return true;
}

Faults::Verdict Faults::judge(const Passing& frame, SeededRandom& random) {
  Verdict verdict;
  for (Rule& rule : rules_) {
    if (!strikes(rule, frame, random)) continue;
    switch (rule.type) {
      case Type::kDrop:
        verdict.loss = rule.loss;
        break;
      case Type::kDuplicate:
        verdict.copies.push_back(rule.time);
        break;
      case Type::kFailInFlight:
        verdict.fails_call = true;
        verdict.delay += rule.time;
        break;
      case Type::kDelay:
        verdict.delay += rule.time;
        break;
    }
  }
  return verdict;
}

std::string Faults::describe() const {
  static constexpr const char* kTypes[] = {"drop", "duplicate", "delay", "fail in flight"};
  std::string text;
  for (const Rule& rule : rules_) {
    if (rule.removed) continue;
    text += std::string("  ") + kTypes[static_cast<size_t>(rule.type)] + " " +
            (rule.kind ? std::string(name_of(*rule.kind)) : "any kind") +
            (rule.reply ? "'s reply" : "") + " from " +
            (rule.match.from.empty() ? "anyone" : rule.match.from) + " to " +
            (rule.match.to.empty() ? "anyone" : rule.match.to) + ": " + std::to_string(rule.seen) +
            " seen, " + std::to_string(rule.hits) + " hit\n";
  }
  return text;
}

}  // namespace farspan::testing
