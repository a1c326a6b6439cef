#include "console/curves.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <utility>

#include "console/ticks.h"
#include "console/whole_file.h"

namespace console {
namespace {

// All lengths in pixels.
constexpr double kWidth = 900, kLeft = 72, kRight = 40, kTop = 64, kBottom = 56;
constexpr double kPanelHeight = 250, kPanelGap = 58;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr std::array kColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7"};  // apart for all eyes

constexpr const char* kStyle = R"(<style>
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #444 }
.title { font-size: 18px; font-weight: 600; fill: #111 }
.name { font-weight: 600; fill: #111; paint-order: stroke; stroke: #fff; stroke-width: 3 }
.grid { stroke: #e4e4e4 } .frame { stroke: #999; fill: none }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.faint { fill: none; stroke-width: 1; opacity: 0.28 }
</style>
)";

std::string px(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) result += c;  // XML has no other controls
    }
  }
  return result;
}

// As in RFC 4180.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + "\"";
}

// As few digits as give the same value back.
std::string all_digits(double value) {
  std::array<char, 32> text{};
  return std::string(text.data(), std::to_chars(text.begin(), text.end(), value).ptr);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double v) { low = std::min(low, v), high = std::max(high, v); }
  bool empty() const { return low > high; }
};

// Maps values to pixels. `from` is the pixel of range.low.
struct Axis {
  Range range;
  double from = 0, to = 0;
  bool log = false;

  double operator()(double v) const {
    const double share = log ? std::log(v / range.low) / std::log(range.high / range.low)
                             : (v - range.low) / (range.high - range.low);
    return from + share * (to - from);
  }
};

bool drawable(const Point& p, Panel::Scale scale) {
  return std::isfinite(p.x) && std::isfinite(p.y) && (scale != Panel::Scale::kLog || p.y > 0);
}

Range x_range(const std::vector<Panel>& panels) {
  Range range;
  for (const Panel& panel : panels) {
    for (const Series& series : panel.series) {
      for (const Point& p : series.points) {
        if (drawable(p, panel.scale)) range.include(p.x);
      }
    }
  }
  if (range.empty()) return {0, 1};
  if (range.low > 0 && range.low < 0.1 * range.high) range.low = 0;  // from step 1 on: from 0
  if (range.low == range.high) range.high = range.low + 1;
  return range;
}

Range y_range(const Panel& panel) {
  std::vector<double> values;
  double lowest_dot = 1;  // dots are few and say what matters: none is left out
  for (const Series& series : panel.series) {
    for (const Point& p : series.points) {
      if (!drawable(p, panel.scale)) continue;
      values.push_back(p.y);
      if (series.draw == Series::Draw::kDots) lowest_dot = std::min(lowest_dot, p.y);
    }
  }
  if (values.empty()) return panel.scale == Panel::Scale::kLog ? Range{0.1, 1} : Range{0, 1};
  std::sort(values.begin(), values.end());
  double low = values.front(), high = values.back();
  switch (panel.scale) {
    case Panel::Scale::kLog:
      return {low / 1.15, high * 1.15};
    case Panel::Scale::kPercent: {
      low = std::min({values[values.size() / 10], lowest_dot, 0.998});
      const double step = round_step((1 - low) / 4);
      return {std::floor(low / step) * step, std::max(1.0, high)};
    }
    case Panel::Scale::kLinear:
      break;
  }
  if (low > 0 && low < 0.4 * high) low = 0;
  const double margin = high > low ? 0.06 * (high - low) : std::max(std::abs(high), 1.0) * 0.5;
  return {low == 0 ? 0 : low - margin, high + margin};
}

// The mean of the points around each, so that the curve does not lag behind.
std::vector<Point> running_average(const std::vector<Point>& points) {
  const size_t reach = std::max<size_t>(4, points.size() / 60);
  std::vector<double> sums{0}, counts{0};  // of the finite points before each
  for (const Point& p : points) {
    const bool finite = std::isfinite(p.y);
    sums.push_back(sums.back() + (finite ? p.y : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  std::vector<Point> result = points;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t begin = i - std::min(reach, i), end = std::min(i + reach + 1, points.size());
    if (std::isfinite(points[i].y)) {
      result[i].y = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
    }
  }
  return result;
}

// At most about 1,000 points: of each bin the lowest and the highest, in their order.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr size_t kBins = 500;
  if (points.size() <= 2 * kBins) return points;
  std::vector<Point> result;
  for (size_t bin = 0; bin < kBins; ++bin) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(bin * points.size() / kBins);
    const auto end = points.begin() + static_cast<ptrdiff_t>((bin + 1) * points.size() / kBins);
    // A gap inside a bin stays a gap.
    if (const auto gap = std::find_if(begin, end, [](auto& p) { return !std::isfinite(p.y); });
        gap != end) {
      result.push_back(*gap);
      continue;
    }
    auto [low, high] = std::minmax_element(begin, end, [](auto& a, auto& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    result.push_back(*low);
    if (high != low) result.push_back(*high);
  }
  return result;
}

class PanelDrawing {
 public:
  PanelDrawing(const Panel& panel, size_t index, Range x, double top)
      : panel_(panel),
        clip_("panel" + std::to_string(index)),
        x_{x, kLeft, kLeft + kPlotWidth, false},
        y_{y_range(panel), top + kPanelHeight, top, panel.scale == Panel::Scale::kLog},
        top_(top) {}

  std::string text() const {
    std::string svg = "<clipPath id=\"" + clip_ + "\">" + box("") + "</clipPath>\n" + grid();
    for (size_t i = 0; i < panel_.series.size(); ++i) svg += series(panel_.series[i], color(i));
    return svg + box(" class=\"frame\"") + "\n" + heading();
  }

 private:
  static const char* color(size_t i) { return kColors[i % kColors.size()]; }

  std::string box(const std::string& attributes) const {
    return "<rect x=\"" + px(kLeft) + "\" y=\"" + px(top_) + "\" width=\"" + px(kPlotWidth) +
           "\" height=\"" + px(kPanelHeight) + "\"" + attributes + "/>";
  }

  std::string grid() const {
    std::string svg;
    for (const Tick& tick : linear_ticks(x_.range.low, x_.range.high, 8)) {
      const std::string x = px(x_(tick.value));
      svg += "<path class=\"grid\" d=\"M" + x + " " + px(top_) + "v" + px(kPanelHeight) + "\"/>";
      svg += "<text text-anchor=\"middle\" x=\"" + x + "\" y=\"" + px(top_ + kPanelHeight + 18) +
             "\">" + tick.text + "</text>\n";
    }
    const bool percent = panel_.scale == Panel::Scale::kPercent;
    const double unit = percent ? 100 : 1;
    const auto ticks = y_.log ? log_ticks(y_.range.low, y_.range.high)
                              : linear_ticks(y_.range.low * unit, y_.range.high * unit, 5);
    for (const Tick& tick : ticks) {
      const std::string y = px(y_(tick.value / unit));
      svg += "<path class=\"grid\" d=\"M" + px(kLeft) + " " + y + "h" + px(kPlotWidth) + "\"/>";
      svg += "<text text-anchor=\"end\" dy=\"4\" x=\"" + px(kLeft - 8) + "\" y=\"" + y + "\">" +
             tick.text + (percent ? " %" : "") + "</text>\n";
    }
    return svg;
  }

  // The panel's name on the left and the legend on the right, above the box.
  std::string heading() const {
    const double y = top_ - 12;
    std::string svg = "<text class=\"name\" x=\"" + px(kLeft) + "\" y=\"" + px(y) + "\">" +
                      escaped(panel_.y_label) + "</text>\n";
    // Fonts differ, so widths are estimates, and each mark stands close before its own text.
    constexpr double kCharacter = 7, kMark = 28, kBetween = 20;
    double x = kLeft + kPlotWidth + kBetween;
    for (const Series& s : panel_.series)
      x -= kMark + kCharacter * double(s.name.size()) + kBetween;
    for (size_t i = 0; i < panel_.series.size(); ++i) {
      const Series& series = panel_.series[i];
      svg += series.draw == Series::Draw::kDots
                 ? dot(x + 14, y - 4, color(i))
                 : "<path class=\"line\" stroke=\"" + std::string(color(i)) + "\" d=\"M" + px(x) +
                       " " + px(y - 4) + "h22\"/>\n";
      svg += "<text x=\"" + px(x + kMark) + "\" y=\"" + px(y) + "\">" + escaped(series.name) +
             "</text>\n";
      x += kMark + kCharacter * double(series.name.size()) + kBetween;
    }
    return svg;
  }

  std::string series(const Series& series, const char* color) const {
    switch (series.draw) {
      case Series::Draw::kLine:
        return path("line", thinned(series.points), color);
      case Series::Draw::kSmoothed:
        return path("faint", thinned(series.points), color) +
               path("line", thinned(running_average(series.points)), color);
      case Series::Draw::kDots:
        return dots(series.points, color);
    }
    return "";
  }

  std::string path(const char* kind, const std::vector<Point>& points, const char* color) const {
    std::string d;
    bool joined = false;
    for (const Point& p : points) {
      const bool shown = drawable(p, panel_.scale);
      if (shown) d += (joined ? "L" : "M") + px(x_(p.x)) + " " + px(y_(p.y));
      if (shown && !joined) d += "h0";  // a lone point shows, too
      joined = shown;
    }
    if (d.empty()) return "";
    return "<path class=\"" + std::string(kind) + "\" clip-path=\"url(#" + clip_ + ")\" stroke=\"" +
           color + "\" d=\"" + d + "\"/>\n";
  }

  static std::string dot(double x, double y, const char* color) {
    return "<circle r=\"5\" stroke=\"#fff\" cx=\"" + px(x) + "\" cy=\"" + px(y) + "\" fill=\"" +
           color + "\"/>\n";
  }

  // The value stands to the left of its dot, below it: the last one is at the right edge, and
  // an accuracy near the upper one.
  std::string dots(const std::vector<Point>& points, const char* color) const {
    std::string svg;
    for (const Point& p : points) {
      if (!drawable(p, panel_.scale)) continue;
      std::array<char, 32> value{};
      const bool percent = panel_.scale == Panel::Scale::kPercent;
      std::snprintf(value.data(), value.size(), percent ? "%.2f %%" : "%.4g",
                    percent ? 100 * p.y : p.y);
      const double x = x_(p.x), y = y_(p.y);
      const bool low = y > top_ + kPanelHeight - 28;  // no room below
      svg += dot(x, y, color);
      svg += "<text class=\"name\" text-anchor=\"" + std::string(x > kLeft + 70 ? "end" : "start") +
             "\" x=\"" + px(x) + "\" y=\"" + px(low ? y - 10 : y + 20) + "\">" + value.data() +
             "</text>\n";
    }
    return svg;
  }

  const Panel& panel_;
  const std::string clip_;
  const Axis x_, y_;
  const double top_;
};

}  // namespace

std::string draw_curves(const std::string& title, const std::string& x_label,
                        const std::vector<Panel>& panels) {
  const double step = kPanelHeight + kPanelGap;
  const double height = kTop + 26 + step * double(panels.size()) - kPanelGap + kBottom;
  const std::string size = "width=\"" + px(kWidth) + "\" height=\"" + px(height) + "\"";
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " +
                    px(kWidth) + " " + px(height) + "\">\n<title>" + escaped(title) + "</title>\n" +
                    kStyle + "<rect " + size + " fill=\"#fff\"/>\n" + "<text class=\"title\" x=\"" +
                    px(kLeft) + "\" y=\"36\">" + escaped(title) + "</text>\n";
  const Range x = x_range(panels);
  double top = kTop + 26;
  for (size_t i = 0; i < panels.size(); ++i, top += step) {
    svg += PanelDrawing(panels[i], i, x, top).text();
  }
  return svg + "<text text-anchor=\"middle\" x=\"" + px(kLeft + kPlotWidth / 2) + "\" y=\"" +
         px(height - 14) + "\">" + escaped(x_label) + "</text>\n</svg>\n";
}

void write_curves(const std::filesystem::path& file, const std::string& title,
                  const std::string& x_label, const std::vector<Panel>& panels) {
  const bool numbers = file.extension() == ".csv";
  write_whole_file(file,
                   numbers ? list_curves(x_label, panels) : draw_curves(title, x_label, panels));
}

std::string list_curves(const std::string& x_label, const std::vector<Panel>& panels) {
  std::string csv = "panel,series," + quoted(x_label) + ",value\n";
  for (const Panel& panel : panels) {
    for (const Series& series : panel.series) {
      const std::string names = quoted(panel.y_label) + "," + quoted(series.name) + ",";
      for (const Point& p : series.points)
        csv += names + all_digits(p.x) + "," + all_digits(p.y) + "\n";
    }
  }
  return csv;
}

int64_t TrainingCurves::add_batch(double loss, double accuracy) {
  farspan::MutexLock lock(mutex_);
  const int64_t step = first_ + static_cast<int64_t>(losses_.size());
  losses_.push_back({double(step), loss});
  batches_.push_back({double(step), accuracy});
  return step;
}

void TrainingCurves::add_test(int64_t step, double accuracy) {
  farspan::MutexLock lock(mutex_);
  tests_.push_back({double(step), accuracy});
}

void TrainingCurves::write(const std::filesystem::path& file, const std::string& title) const {
  write_curves(file, title, "step", panels());
}

std::vector<Panel> TrainingCurves::panels() const {
  farspan::MutexLock lock(mutex_);
  Panel losses{
      .y_label = "loss",
      .series = {{"each batch, and their running average", losses_, Series::Draw::kSmoothed}},
      .scale = Panel::Scale::kLog};
  Panel accuracies{.y_label = "accuracy", .series = {}, .scale = Panel::Scale::kPercent};
  if (!batches_.empty()) {
    accuracies.series.push_back({"training batches", batches_, Series::Draw::kSmoothed});
  }
  if (!tests_.empty()) {
    accuracies.series.push_back({"test images", tests_, Series::Draw::kDots});
  }
  std::vector<Panel> panels{std::move(losses)};
  if (!accuracies.series.empty()) panels.push_back(std::move(accuracies));
  return panels;
}

}  // namespace console
