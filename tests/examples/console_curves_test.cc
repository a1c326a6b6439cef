// The rules under test: examples/console/curves.h.
#include "console/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <farspan/c10d/base/error.h>

#include "console/whole_file.h"

namespace console {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// True when every element is closed, in the right order, and no stray "&" or "<" is left.
bool well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = 0; (at = svg.find_first_of("<&", at)) != std::string::npos; ++at) {
    if (svg[at] == '&') {
      const std::string_view rest = std::string_view(svg).substr(at);
      if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&quot;")) {
        return false;
      }
      continue;
    }
    const size_t end = svg.find_first_of("<>", at + 1);
    if (end == std::string::npos || svg[end] == '<') return false;
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.empty() || tag.ends_with('/')) continue;
    if (tag[0] != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else if (open.empty() || open.back() != tag.substr(1)) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

std::string draw(const Panel& panel) { return draw_curves("title", "step", {panel}); }

Panel panel_of(std::vector<Point> points, Series::Draw how = Series::Draw::kLine,
               Panel::Scale scale = Panel::Scale::kLinear) {
  return {"y", {{"series", std::move(points), how}}, scale};
}

TEST(Curves, ATrainingRunShowsLossAndAccuracyWithAxesAndLegend) {
  TrainingCurves curves;
  for (int i = 1; i <= 938; ++i) EXPECT_EQ(curves.add_batch(2.3 / i, 1 - 1.0 / i), i - 1);
  curves.add_test(938, 0.9823);
  const std::string svg = draw_curves("MNIST", "step", curves.panels());
  EXPECT_TRUE(well_formed(svg));
  for (const char* text : {">MNIST<", ">step<", ">loss<", ">accuracy<", ">training batches<",
                           ">test images<", ">98.23 %<", ">800<", ">0.01<", ">100 %<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(Curves, ThePictureNeedsNothingFromElsewhere) {
  const std::string svg = draw(panel_of({{1, 2}, {2, 3}}));
  EXPECT_EQ(occurrences(svg, "http"), 1u);  // the namespace's name, which nobody opens
  EXPECT_EQ(occurrences(svg, "<image"), 0u);
  EXPECT_EQ(occurrences(svg, "<script"), 0u);
}

TEST(Curves, ValuesLandWhereTheAxisSaysTheyAre) {
  // From 0 to 10 with 6 % above: x = 72 to 860, y = 340 (0) to 90 (10.6).
  const std::string svg = draw(panel_of({{0, 0}, {5, 5}, {10, 10}}));
  EXPECT_NE(svg.find("M72.0 340.0h0L466.0 222.1L860.0 104.2"), std::string::npos) << svg;
}

TEST(Curves, ALogarithmicAxisLeavesOutWhatItCannotShow) {
  const std::string svg =
      draw(panel_of({{1, 1}, {2, 0}, {3, -1}, {4, 0.1}}, Series::Draw::kLine, Panel::Scale::kLog));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(occurrences(svg, "h0"), 2u) << "two lone points";
}

TEST(Curves, APointThatIsNotFiniteLeavesAGap) {
  for (const auto how : {Series::Draw::kLine, Series::Draw::kSmoothed, Series::Draw::kDots}) {
    const std::string svg =
        draw(panel_of({{1, 1}, {2, 2}, {3, kNan}, {4, HUGE_VAL}, {5, 3}, {6, 4}}, how));
    EXPECT_TRUE(well_formed(svg));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
  EXPECT_EQ(occurrences(draw(panel_of({{1, 1}, {2, 2}, {3, kNan}, {5, 3}})), "h0"), 2u);
}

TEST(Curves, NoDataIsAnEmptyPictureNotAnError) {
  for (const auto scale : {Panel::Scale::kLinear, Panel::Scale::kLog, Panel::Scale::kPercent}) {
    for (const auto& points : {std::vector<Point>{}, {{1, kNan}}, {{1, 0.5}}, {{1, 7}, {2, 7}}}) {
      const std::string svg = draw(panel_of(points, Series::Draw::kLine, scale));
      EXPECT_TRUE(well_formed(svg));
      EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    }
  }
  EXPECT_TRUE(well_formed(draw_curves("nothing", "", {})));
  EXPECT_EQ(TrainingCurves().panels().size(), 1u);
}

TEST(Curves, NumbersKeepAllTheirDigitsAndTextItsQuotes) {
  const double third = 1.0 / 3;
  const std::string csv = list_curves(
      "the \"step\"", {{"loss", {{"a, b", {{0, third}, {1, kNan}}}}, Panel::Scale::kLog}});
  const std::string head = "panel,series,\"the \"\"step\"\"\",value\n\"loss\",\"a, b\",0,";
  EXPECT_EQ(csv, head + "0.3333333333333333\n\"loss\",\"a, b\",1,nan\n");
  EXPECT_EQ(std::stod(csv.substr(head.size())), third);
}

TEST(Curves, TextIsEscaped) {
  Panel panel = panel_of({{1, 1}});
  panel.y_label = "a < b";
  panel.series[0].name = "\"x\" & \x01y";
  const std::string svg = draw_curves("<script>", "&", {panel});
  EXPECT_TRUE(well_formed(svg));
  EXPECT_NE(svg.find("&lt;script>"), std::string::npos);
  EXPECT_NE(svg.find("&quot;x&quot; &amp; y"), std::string::npos);
}

TEST(Curves, ALongSeriesIsThinnedButKeepsItsExtremes) {
  std::vector<Point> points;
  for (int i = 0; i < 100'000; ++i) points.push_back({double(i), 1.0});
  points[54'321].y = 9;
  points[12'345].y = 0.5;
  const std::string svg = draw(panel_of(points));
  EXPECT_LT(svg.size(), 60'000u);
  // 0.5 to 9, 6 % of margin below and above after the axis begins at 0.
  const auto y = [](double v) { return 340 - 250 * v / (9 + 0.06 * 9); };
  std::array<char, 16> text{};
  for (const double extreme : {9.0, 0.5}) {
    std::snprintf(text.data(), text.size(), " %.1fL", y(extreme));
    EXPECT_NE(svg.find(text.data()), std::string::npos) << text.data();
  }
}

TEST(Curves, TheRunningAverageDoesNotLag) {
  // The average of a straight line is the line itself, away from its ends.
  std::vector<Point> points;
  for (int i = 0; i <= 100; ++i) points.push_back({double(i), double(i)});
  const std::string svg = draw(panel_of(points, Series::Draw::kSmoothed));
  const std::string middle = "L466.0 " + std::string("222.1");
  EXPECT_EQ(occurrences(svg, middle), 2u) << "once faintly, once in the average";
}

TEST(Curves, ARunThatGoesOnBeginsAtItsStep) {
  TrainingCurves curves(40);
  EXPECT_EQ(curves.add_batch(0.5, 0.25), 40);
  EXPECT_EQ(curves.add_batch(0.4, 0.35), 41);
  EXPECT_EQ(curves.panels()[0].series[0].points[1].x, 41);
}

class CurvesFile : public testing::Test {
 protected:
  CurvesFile() {
    std::string name = (std::filesystem::temp_directory_path() / "curves-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~CurvesFile() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(CurvesFile, IsWrittenWholeAndAlone) {
  const auto file = folder_ / "deep" / "curves.svg";
  write_curves(file, "title", "step", {panel_of({{1, 1}})});
  write_curves(file, "again", "step", {panel_of({{1, 1}})});  // replaces it
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(text, draw_curves("again", "step", {panel_of({{1, 1}})}));
  const std::filesystem::directory_iterator files(file.parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(CurvesFile, IsThereAllTheTimeThatItIsReplaced) {
  const auto file = folder_ / "file";
  write_whole_file(file, "text");
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      std::ifstream in(file);
      EXPECT_EQ((std::string{std::istreambuf_iterator<char>(in), {}}), "text");
    }
  });
  for (int i = 0; i < 100; ++i) write_whole_file(file, "text");
  done = true;
  reader.join();
}

TEST_F(CurvesFile, HoldsNumbersWhereItsNameEndsInCsv) {
  TrainingCurves curves;
  curves.add_batch(0.5, 0.25);
  curves.write(folder_ / "curves.csv", "title");
  std::ifstream in(folder_ / "curves.csv");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(text, list_curves("step", curves.panels()));
}

TEST_F(CurvesFile, ThatCannotBeWrittenIsAnErrorThatNamesIt) {
  std::ofstream(folder_ / "file") << "in the way";
  try {
    write_curves(folder_ / "file" / "curves.svg", "title", "step", {});
    FAIL() << "wrote into a file as if it were a folder";
  } catch (const farspan::Error& e) {
    EXPECT_EQ(e.code(), farspan::Code::kUnavailable);
    EXPECT_NE(e.operation().find("curves.svg"), std::string::npos);
  }
}

TEST_F(CurvesFile, AFolderInItsPlaceIsLeftAlone) {
  std::filesystem::create_directories(folder_ / "curves.svg" / "precious");
  EXPECT_THROW(write_curves(folder_ / "curves.svg", "title", "step", {}), farspan::Error);
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(CurvesFile, NothingIsInTheWayWhereOneCanBeMade) {
  EXPECT_EQ(why_not_written(folder_ / "curves.svg"), "");
  EXPECT_EQ(why_not_written(folder_ / "new" / "folder" / "curves.svg"), "");
  EXPECT_EQ(why_not_written("curves.svg"), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(CurvesFile, WhatIsInTheWayIsSaidBeforeItIsWritten) {
  EXPECT_THAT(why_not_written("/dev/null/curves.svg"),
              ::testing::HasSubstr("'/dev/null' is no folder"));
  EXPECT_THAT(why_not_written(folder_), ::testing::HasSubstr("it is a folder"));
  EXPECT_THAT(why_not_written(""), ::testing::HasSubstr("it names no file"));
  EXPECT_THAT(why_not_written(folder_ / "new/"), ::testing::HasSubstr("it names no file"));
}

}  // namespace
}  // namespace console
