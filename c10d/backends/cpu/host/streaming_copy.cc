#include <farspan/c10d/backends/cpu/host/streaming_copy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace farspan::dist::cpu::host {

#if defined(__x86_64__)
void streaming_copy(std::byte* to, std::span<const std::byte> from) noexcept {
  constexpr size_t kLine = 64;
  const size_t head = std::min<size_t>(-reinterpret_cast<uintptr_t>(to) % kLine, from.size());
  if (head > 0) std::memcpy(to, from.data(), head);
  const std::byte* source = from.data() + head;
  std::byte* place = to + head;
  size_t left = from.size() - head;
  for (; left >= kLine; left -= kLine, source += kLine, place += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(place);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  if (left > 0) std::memcpy(place, source, left);
}
void finish_streaming() noexcept { _mm_sfence(); }
#else
void streaming_copy(std::byte* to, std::span<const std::byte> from) noexcept {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}
void finish_streaming() noexcept {}
#endif

}  // namespace farspan::dist::cpu::host
