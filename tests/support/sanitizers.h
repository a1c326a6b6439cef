// Which sanitizers this test is built with; there is one of these two at most.
#pragma once

namespace farspan::testing {

#if defined(__has_feature)  // Clang, and g++ from 14 on
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true, kThreadSanitizer = false;
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool kAddressSanitizer = false, kThreadSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false, kThreadSanitizer = false;
#endif
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

// Of so many repetitions a test does that many: sanitizers make it several times slower, and what
// they look for comes in each.
constexpr int repetitions(int count) { return kSanitized ? (count + 4) / 5 : count; }

}  // namespace farspan::testing
