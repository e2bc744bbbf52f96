#include "zero/launch/control_message.hpp"

#include "base/byte_archive.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

namespace penstock {
static bool is_known(ErrorCode code) {
  return code <= ErrorCode::failed_state;
}
}  // namespace penstock

namespace penstock::zero::control {

static bool is_known(Gatherer by) {
  return static_cast<std::size_t>(by) < gatherers;
}

// The fields of each message, and of what is in them, for both directions.
template <class Archive>
static void fields(Archive& archive, auto& message) {
  using M = std::remove_cvref_t<decltype(message)>;
  if constexpr (std::same_as<M, Peer>) {
    archive(message.machine, message.host, message.process);
  } else if constexpr (std::same_as<M, Hello>) {
    archive(message.job, message.build, message.machine, message.host, message.rank, message.ranks,
            message.process);
  } else if constexpr (std::same_as<M, Welcome>) {
    archive(message.peers);
  } else if constexpr (std::same_as<M, Gather>) {
    archive(message.by, message.epoch, message.round, message.label, message.bytes);
  } else if constexpr (std::same_as<M, Gathered>) {
    archive(message.by, message.epoch, message.round, message.all);
  } else if constexpr (std::same_as<M, Interrupt>) {
    archive(message.epoch, message.text);
  } else if constexpr (std::same_as<M, Absent>) {
    archive(message.by, message.epoch, message.round, message.ranks);
  } else if constexpr (std::same_as<M, Failure>) {
    archive(message.code, message.text);
  }
}

namespace {

constexpr std::uint32_t magic = 0x4b545350;  // "PSTK"
constexpr std::size_t header_bytes = 12;

struct Header {
  std::uint32_t magic = 0;
  std::uint16_t version = 0, kind = 0;
  std::uint32_t size = 0;
};
static_assert(sizeof(Header) == header_bytes);

Error corrupted() {
  return Error(ErrorCode::corrupted, "ControlChannel");
}

template <std::size_t kind = 0>
std::optional<Message> decode(std::size_t wanted, std::span<const std::byte> payload) {
  if constexpr (kind < std::variant_size_v<Message>) {
    if (kind != wanted) return decode<kind + 1>(wanted, payload);
    std::variant_alternative_t<kind, Message> message;
    ByteReader reader(payload);
    fields(reader, message);
    if (reader.ok()) return Message(std::move(message));
  }
  return std::nullopt;
}

}  // namespace

Failure failure_of(const Error& error) {
  constexpr std::size_t text_bytes_max = 4000;
  std::string text = error.message();
  if (text.size() > text_bytes_max) text = text.substr(0, text_bytes_max) + "…";
  return {.code = error.code(), .text = std::move(text)};
}

Error error_of(const Failure& failure) {
  std::string_view rest = failure.text;
  const auto take_line = [&rest] {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return line;
  };
  std::string reason = take_line();
  constexpr std::string_view origin = " [ControlChannel]";  // printed again
  if (reason.ends_with(origin)) reason.resize(reason.size() - origin.size());
  Error error = Error(failure.code, "ControlChannel").reason(std::move(reason));
  while (!rest.empty()) {
    const std::string line = take_line();
    error = std::move(error).note(line.starts_with("  ") ? line.substr(2) : line);
  }
  return error;
}

std::vector<std::byte> encode(const Message& message) {
  std::vector<std::byte> frame(header_bytes);
  ByteWriter writer(frame);
  std::visit([&writer](const auto& one) { fields(writer, one); }, message);
  const Header header{magic, protocol_version, static_cast<std::uint16_t>(message.index()),
                      static_cast<std::uint32_t>(frame.size() - header_bytes)};
  PENSTOCK_CHECK(frame.size() - header_bytes <= payload_bytes_max);
  std::memcpy(frame.data(), &header, header_bytes);
  return frame;
}

std::uint64_t gathered_bytes(std::uint64_t ranks, std::uint64_t bytes) {
  return sizeof(Gatherer) + 2 * sizeof(std::uint64_t) + sizeof(std::uint32_t) +
         ranks * (sizeof(std::uint32_t) + bytes);
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(std::exchange(begin_, 0)));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Message>> FrameReader::next() {
  const std::span<const std::byte> rest = std::span(bytes_).subspan(begin_);
  if (rest.size() < header_bytes) return std::optional<Message>();
  Header header;
  std::memcpy(&header, rest.data(), header_bytes);
  if (header.magic != magic) {
    return corrupted()
        .reason("the connection does not speak the protocol of Penstock")
        .advice("another program uses the port; choose another MASTER_PORT");
  }
  if (header.version != protocol_version) {
    return corrupted()
        .reason("the peer speaks another version of the protocol")
        .wanted(std::uint32_t{protocol_version})
        .got(std::uint32_t{header.version})
        .advice("start the same build of the program on every host");
  }
  if (header.size > payload_max_) {
    return corrupted()
        .reason("a message is too long")
        .wanted("at most " + std::to_string(payload_max_) + " bytes")
        .got(header.size);
  }
  if (rest.size() - header_bytes < header.size) return std::optional<Message>();
  auto message = decode(header.kind, rest.subspan(header_bytes, header.size));
  if (!message) {
    return corrupted()
        .reason("the fields of a message are wrong")
        .object("message of kind " + std::to_string(header.kind));
  }
  begin_ += header_bytes + header.size;
  return message;
}

}  // namespace penstock::zero::control
