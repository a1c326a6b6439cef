// Which sanitizers this test is built with: g++ and Clang say so in different ways.
#pragma once

namespace farspan::testing {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Of so many repetitions a test does that many: sanitizers make it several times slower, and what
// they look for comes in each.
constexpr int repetitions(int count) {
  return kAddressSanitizer || kThreadSanitizer ? (count + 4) / 5 : count;
}

}  // namespace farspan::testing
