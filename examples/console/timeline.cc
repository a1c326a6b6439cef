#include "console/timeline.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <utility>

#include "console/format.h"
#include "console/ticks.h"

namespace console {
namespace {

using Interval = std::pair<int64_t, int64_t>;

// By worker, the times it was busy: in order, without overlaps.
std::map<std::string, std::vector<Interval>> busy_times(const std::vector<Span>& spans) {
  std::map<std::string, std::vector<Interval>> workers;
  for (const Span& span : spans) workers[span.worker].emplace_back(span.begin_ns, span.end_ns);
  for (auto& [worker, times] : workers) {
    std::sort(times.begin(), times.end());
    std::vector<Interval> merged;
    for (const auto& [begin, end] : times) {
      if (merged.empty() || begin > merged.back().second) {
        merged.emplace_back(begin, end);
      } else {
        merged.back().second = std::max(merged.back().second, end);
      }
    }
    times = std::move(merged);
  }
  return workers;
}

int64_t total(const std::vector<Interval>& times) {
  int64_t sum = 0;
  for (const auto& [begin, end] : times) sum += end - begin;
  return sum;
}

std::vector<Span> valid(const std::vector<Span>& spans) {
  std::vector<Span> kept;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(kept),
               [](const Span& span) { return span.end_ns >= span.begin_ns; });
  return kept;
}

Interval extent(const std::vector<Span>& spans) {
  Interval all{spans.front().begin_ns, spans.front().end_ns};
  for (const Span& span : spans) {
    all.first = std::min(all.first, span.begin_ns);
    all.second = std::max(all.second, span.end_ns);
  }
  return all;
}

char initial(const std::string& kind) {
  return kind.empty() ? '?' : static_cast<char>(std::toupper(static_cast<unsigned char>(kind[0])));
}

// The picture's columns, and the times that they stand for.
struct Scale {
  Interval all;
  int64_t columns;

  double ns_per_column() const {
    return std::max(double(all.second - all.first), 1.0) / double(columns);
  }
  int64_t column(double ns_from_start) const {
    return std::llround(ns_from_start / ns_per_column());
  }
};

// Kinds in the order of their first begin, with a colour each.
std::vector<std::string> kinds_of(std::vector<Span> spans) {
  std::stable_sort(spans.begin(), spans.end(),
                   [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  std::vector<std::string> kinds;
  for (const Span& span : spans) {
    if (std::find(kinds.begin(), kinds.end(), span.kind) == kinds.end()) kinds.push_back(span.kind);
  }
  return kinds;
}

Style color_of(const std::vector<std::string>& kinds, const std::string& kind) {
  constexpr std::array kColors{Style::kGreen, Style::kMagenta, Style::kYellow,
                               Style::kCyan,  Style::kBlue,    Style::kRed};
  const auto at = std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
  return kColors[static_cast<size_t>(at) % kColors.size()];
}

// One row: each span covers the columns between its ends, at least one where it has the room, and
// begins with its name.
std::string row(const std::vector<const Span*>& spans, const Scale& scale,
                const std::vector<std::string>& kinds, const Terminal& terminal) {
  std::vector<const Span*> cells(static_cast<size_t>(scale.columns), nullptr);
  for (const Span* span : spans) {  // in the order of their begins: a later one covers
    const int64_t begin =
        std::min(scale.column(double(span->begin_ns - scale.all.first)), scale.columns - 1);
    const int64_t end = scale.column(double(span->end_ns - scale.all.first));
    for (int64_t c = begin; c < std::max(end, begin + 1); ++c) cells[size_t(c)] = span;
  }
  std::string text;
  for (size_t at = 0; at < cells.size();) {
    size_t end = at;
    while (end < cells.size() && cells[end] == cells[at]) ++end;
    const auto length = static_cast<int64_t>(end - at);
    if (const Span* span = cells[at]) {
      const std::string name = initial(span->kind) + span->label;
      const std::string fill = repeat(terminal.unicode ? "━" : "=", length - width(name));
      text += styled(terminal, color_of(kinds, span->kind), cut(name, length) + fill);
    } else {
      text += repeat(" ", length);
    }
    at = end;
  }
  return text;
}

// "0 ms       10        20", with marks 1, 2 or 5 times a power of ten apart.
std::string axis(const Scale& scale) {
  constexpr int64_t kBetweenMarks = 10;  // columns, at least
  const double step = round_step(scale.ns_per_column() * kBetweenMarks);
  const double unit = step >= 1e9 ? 1e9 : step >= 1e6 ? 1e6 : 1e3;
  std::string text = unit == 1e9 ? "0 s" : unit == 1e6 ? "0 ms" : "0 us";
  for (double at = step; scale.column(at) + 6 < scale.columns; at += step) {
    std::array<char, 32> mark{};
    std::snprintf(mark.data(), mark.size(), "%.6g", at / unit);
    text = pad_right(text, scale.column(at)) + mark.data();
  }
  return text;
}

}  // namespace

int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Overlap measure(const std::vector<Span>& spans) {
  const std::vector<Span> kept = valid(spans);
  if (kept.empty()) return {};
  std::vector<std::pair<int64_t, int>> edges;  // +1: a worker becomes busy, -1: it becomes idle
  int64_t busy = 0;
  for (const auto& [worker, times] : busy_times(kept)) {
    busy += total(times);
    for (const auto& [begin, end] : times) {
      edges.emplace_back(begin, 1);
      edges.emplace_back(end, -1);
    }
  }
  std::sort(edges.begin(), edges.end());
  int64_t together = 0, since = 0;
  int workers = 0;
  for (const auto& [at, change] : edges) {
    if (workers >= 2) together += at - since;
    workers += change, since = at;
  }
  const auto [begin, end] = extent(kept);
  return {double(end - begin) / 1e9, double(busy) / 1e9, double(together) / 1e9};
}

std::string timeline(const std::vector<Span>& spans, const Terminal& terminal) {
  constexpr int64_t kNarrowest = 40;
  const std::vector<Span> kept = valid(spans);
  if (kept.empty()) return "";
  const auto workers = busy_times(kept);
  const auto kinds = kinds_of(kept);
  int64_t names = 0;
  for (const auto& [worker, times] : workers) names = std::max(names, width(worker));

  // A row is "worker |picture| 100 %".
  const int64_t room = std::max<int64_t>(terminal.columns(), kNarrowest) - 1 - names - 3 - 6;
  const Scale scale{extent(kept), std::max<int64_t>(room, 10)};
  const double elapsed = std::max(double(scale.all.second - scale.all.first), 1.0);
  const std::string edge = terminal.unicode ? "│" : "|";
  std::string text = repeat(" ", names + 2) + styled(terminal, Style::kDim, axis(scale)) + "\n";
  for (const auto& [worker, times] : workers) {
    std::vector<const Span*> own;
    for (const Span& span : kept) {
      if (span.worker == worker) own.push_back(&span);
    }
    std::stable_sort(own.begin(), own.end(),
                     [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
    text += pad_right(worker, names + 1) + edge + row(own, scale, kinds, terminal) + edge +
            pad_left(percent(double(total(times)) / elapsed, 0), 6) + "\n";
  }
  for (const std::string& kind : kinds) {
    const std::string entry = std::string(1, initial(kind)) + " " + kind;
    text += styled(terminal, color_of(kinds, kind), entry) + "  ";
  }
  const Overlap overlap = measure(kept);
  return text + "two or more workers at once for " +
         percent(overlap.together_s / std::max(overlap.elapsed_s, 1e-9), 0) + " of " +
         duration(std::chrono::duration<double>(overlap.elapsed_s)) + "\n";
}

}  // namespace console
