#include "base/utf8.hpp"
#include "zero/report/event_directory.hpp"
#include "zero/report/event_writer.hpp"

#include <unistd.h>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <ios>
#include <string_view>
#include <utility>

// Records as TensorFlow writes them (tensorflow/core/lib/io/record_writer.h), of Event messages
// (tensorflow/core/util/event.proto) in the encoding of protocol buffers
// (https://protobuf.dev/programming-guides/encoding/).
namespace penstock::zero {

namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// CRC-32C (RFC 3720, appendix B.4), rotated and offset so that records of records have other ones.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

std::string record_of(const std::string& event) {
  const std::string length = bytes_of(std::uint64_t{event.size()});
  return length + bytes_of(masked_crc(length)) + event + bytes_of(masked_crc(event));
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// A field of a message: its number, then its value.
std::string field(unsigned number, double value) {
  return varint(number << 3 | 1u) + bytes_of(value);
}
std::string field(unsigned number, float value) {
  return varint(number << 3 | 5u) + bytes_of(value);
}
std::string field(unsigned number, std::uint64_t value) {
  return varint(number << 3) + varint(value);
}
std::string field(unsigned number, const std::string& value) {
  return varint(number << 3 | 2u) + varint(value.size()) + value;
}

class TensorboardWriter final : public EventWriter {
 public:
  TensorboardWriter(std::filesystem::path file, std::ofstream stream)
      : file_(std::move(file)), stream_(std::move(stream)) {}

  /// The file's first record.
  Result<void> begin() { return append(field(3, std::string("brain.Event:2"))); }

  Result<void> write(std::span<const MonitorEvent> events) override {
    for (const MonitorEvent& event : events) {
      const std::string value = field(1, to_utf8(event.name)) + field(2, static_cast<float>(event.value));
      PENSTOCK_TRY(append(field(2, event.place) + field(5, field(1, value))));
    }
    return ok();
  }

 private:
  Result<void> append(const std::string& rest) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    const std::string record = record_of(field(1, now.count()) + rest);
    errno = 0;
    stream_.write(record.data(), static_cast<std::streamsize>(record.size()));
    stream_.flush();
    if (stream_) return ok();
    return Error::from_errno("tensorboard", errno == 0 ? EIO : errno).object(file_.string());
  }

  const std::filesystem::path file_;
  std::ofstream stream_;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace

Result<std::unique_ptr<EventWriter>> make_tensorboard_writer(const MonitorConfig& monitor) {
  PENSTOCK_TRY_ASSIGN(const auto directory, make_event_directory(monitor, "tensorboard"));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const std::filesystem::path file =
      directory / ("events.out.tfevents." + std::to_string(seconds) + '.' + host_name() + '.' +
                   std::to_string(::getpid()) + ".penstock");
  errno = 0;
  std::ofstream stream(file, std::ios::binary | std::ios::app);
  if (!stream) return Error::from_errno("tensorboard", errno == 0 ? EIO : errno).object(file.string());
  auto writer = std::make_unique<TensorboardWriter>(file, std::move(stream));
  PENSTOCK_TRY(writer->begin());
  return std::unique_ptr<EventWriter>(std::move(writer));
}

}  // namespace penstock::zero
