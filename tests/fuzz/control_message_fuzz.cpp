// Bytes of a stranger: whatever FrameReader takes for a message must be exactly the bytes of that message.
#include "choices.hpp"

#include <penstock/base/check.hpp>
#include "zero/launch/control_message.hpp"

#include <algorithm>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock::zero::control;
  penstock::test::Choices choices(data, size);
  std::vector<std::byte> stream;
  if (choices.byte() % 4 != 0) stream = encode(Leave{});  // a header that is right
  if (!stream.empty()) {
    stream[6] = std::byte(choices.below(8));
    stream[8] = std::byte(choices.byte());
    stream[9] = std::byte(choices.byte() % 4);
  }
  while (!choices.exhausted()) stream.push_back(std::byte(choices.byte()));

  FrameReader reader;
  if (size % 2 == 0) reader.limit(payload_bytes_max);
  std::size_t taken = 0;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t piece = std::min<std::size_t>(1 + (at * 31 + size) % 97, stream.size() - at);
    reader.feed(std::span(stream).subspan(at, piece));
    at += piece;
    while (true) {
      const auto message = reader.next();
      if (!message) return 0;
      if (!*message) break;
      const auto frame = encode(**message);
      PENSTOCK_CHECK(taken + frame.size() <= at);
      PENSTOCK_CHECK(
          std::equal(frame.begin(), frame.end(), stream.begin() + static_cast<std::ptrdiff_t>(taken)));
      taken += frame.size();
    }
    PENSTOCK_CHECK(reader.is_between_frames() == (taken == at));
  }
  return 0;
}
