#include "console/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "console/format.h"

namespace console {
namespace {

using farspan::MutexLock;
using Seconds = std::chrono::duration<double>;

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr double kLossMemory = 20;     // steps
constexpr double kSpeedMemory = 5;     // seconds
constexpr double kShortestLook = 0.2;  // seconds; a speed over less is no speed yet
constexpr int64_t kNarrowestBar = 5;   // columns; below that the numbers are worth more

std::string loss_text(double loss) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), std::abs(loss) < 100 ? "%.4f" : "%.4g", loss);
  return text.data();
}

// `filled` of the `columns`, in eighths of a column where the terminal has the characters.
std::string cells(double filled, int64_t columns, bool unicode) {
  constexpr std::array kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = std::llround(std::clamp(filled, 0.0, 1.0) * 8 * double(columns));
  const int64_t whole = eighths / 8;
  if (!unicode) return repeat("#", whole) + repeat(".", columns - whole);
  return pad_right(repeat("█", whole) + kEighths[static_cast<size_t>(eighths % 8)], columns);
}

}  // namespace

void Progress::Average::add(double value, double weight, double memory) {
  const double kept = std::exp(-weight / memory);
  value_ = value_ * kept + value;
  weight_ = weight_ * kept + weight;
}

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      start_(options_.now()),
      done_(options_.done),
      drawn_at_(start_) {}

Progress::~Progress() { finish(); }

void Progress::step(double loss, int64_t samples) {
  MutexLock lock(mutex_);
  if (finished_) return;
  ++done_, ++new_steps_;
  samples_ += samples, new_samples_ += samples;
  // A loss that is not finite is shown at once and forgotten with the next good one.
  if (!std::isfinite(loss) || !std::isfinite(loss_.value_)) loss_ = {};
  loss_.add(loss, 1, kLossMemory);
  const auto interval = options_.terminal.interactive ? kRedraw : options_.plain_interval;
  if (!drawn_ || options_.now() - drawn_at_ >= interval) draw(/*last=*/false);
}

void Progress::note(std::string_view line) {
  MutexLock lock(mutex_);
  const bool over_bar = options_.terminal.interactive && drawn_ && !finished_;
  options_.terminal.write((over_bar ? "\r\x1b[K" : "") + std::string(line) + "\n");
  if (over_bar) draw(/*last=*/false);
}

void Progress::finish() {
  MutexLock lock(mutex_);
  if (finished_) return;
  if (done_ > options_.done) draw(/*last=*/true);
  finished_ = true;
}

void Progress::draw(bool last) {
  const auto now = options_.now();
  const double passed = Seconds(now - drawn_at_).count();
  if (!drawn_) {
    new_samples_ = new_steps_ = 0;  // the first step bears the start of all
    drawn_at_ = now;
  } else if (passed > 0) {
    samples_per_s_.add(double(new_samples_), passed, kSpeedMemory);
    steps_per_s_.add(double(new_steps_), passed, kSpeedMemory);
    new_samples_ = new_steps_ = 0;
    drawn_at_ = now;
  }
  drawn_ = true;
  if (!options_.terminal.interactive) {
    options_.terminal.write(line(last) + "\n");
  } else {
    options_.terminal.write("\r" + line(last) + "\x1b[K" + (last ? "\n" : ""));
  }
}

std::string Progress::line(bool last) const {
  const bool fixed = options_.terminal.interactive;  // numbers that stay in their place
  const std::string total = std::to_string(options_.steps);
  std::string step = std::to_string(done_);
  if (options_.steps > 0) {
    step = (fixed ? pad_left(step, width(total)) : step) + "/" + total;
  }
  const Seconds taken = drawn_at_ - start_;
  const bool known = steps_per_s_.weight_ >= kShortestLook;
  const double nothing = std::numeric_limits<double>::quiet_NaN();
  const double speed = last    ? double(samples_) / taken.count()
                       : known ? samples_per_s_.value()
                               : nothing;
  std::string speed_text = std::isfinite(speed) ? count(std::llround(speed)) : "-";
  std::string numbers = "loss " + loss_text(loss_.value()) + "  " +
                        (fixed ? pad_left(speed_text, 7) : speed_text) + " samples/s";
  if (last) {
    const bool whole = options_.steps == 0 || done_ >= options_.steps;
    numbers += (whole ? "  took " : "  stopped after ") + clock_time(taken);
  } else if (options_.steps > 0) {
    const double missing = double(std::max<int64_t>(options_.steps - done_, 0));
    const Seconds left(known ? missing / steps_per_s_.value() : nothing);
    numbers += "  " + pad_left(clock_time(left), fixed ? 5 : 0) + " left";
  }

  std::string head = options_.title;
  if (options_.steps > 0) {
    const int64_t share = std::min<int64_t>(100 * done_ / options_.steps, 100);
    head += pad_left(std::to_string(share), 4) + "%";
  }
  if (!fixed) return head + "  step " + step + "  " + numbers;

  // The last column stays empty: some terminals wrap as soon as it is written.
  const int64_t room = options_.terminal.columns() - 1;
  const std::string tail = step + "  " + numbers;
  const int64_t left = room - width(head) - width(tail) - 3;
  if (options_.steps > 0 && left >= kNarrowestBar) return head + bar(left) + " " + tail;
  return cut(head + " " + tail, room);
}

std::string Progress::bar(int64_t columns) const {
  const double share = double(done_) / double(options_.steps);
  const Terminal& terminal = options_.terminal;
  return "|" + styled(terminal, Style::kGreen, cells(share, columns, terminal.unicode)) + "|";
}

}  // namespace console
