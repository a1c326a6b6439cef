// The rule under test: c10d/backends/messages/told_error.h.
#include <farspan/c10d/backends/messages/told_error.h>
#include <gtest/gtest.h>

#include "support/errors.h"

namespace farspan::dist::messages {
namespace {

// As the other end reads it.
Error read(const std::string& text) { return ToldError::from(std::as_bytes(std::span(text))); }
Error tell(const Error& error) { return read(ToldError::of(error).text()); }

TEST(ToldError, ArrivesAsItWas) {
  const Error told =
      tell(Error(Code::kTimeout, "waited").worker("rank 3").advice("look at what it does"));
  EXPECT_EQ(told.code(), Code::kTimeout);
  EXPECT_EQ(told.message(), "waited");
  EXPECT_EQ(told.worker(), "rank 3");
  EXPECT_EQ(told.advice(), "look at what it does");
  EXPECT_EQ(tell(Error(Code::kCancelled, "")).message(), "");
}

TEST(ToldError, TextsAreCutToTheRoomThereIs) {
  const std::string words(1000, 'x');
  const Error told = tell(Error(Code::kRemote, words).worker(words).advice(words));
  EXPECT_EQ(told.message(), std::string(317, 'x'));
  EXPECT_EQ(told.worker(), std::string(79, 'x'));
  EXPECT_EQ(told.advice(), std::string(95, 'x'));
}

// From an end that writes no zeros, or is newer, or sends something else.
TEST(ToldError, WhateverComesIsAnError) {
  const Error error = read(std::string(sizeof(ToldError), 'y'));
  EXPECT_EQ(error.code(), Code::kUnknown);
  EXPECT_EQ(error.message(), std::string(318, 'y'));
  EXPECT_EQ(farspan::testing::code_of([] { read("too short"); }), Code::kCorrupt);
}

}  // namespace
}  // namespace farspan::dist::messages
