#include "zero/comm/process/split_channel.hpp"

#include "zero/launch/listen.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace penstock::zero {

namespace {

constexpr const char* operation = "ProcessGroup::split";

/// Of each rank: its color, and its address in the connection to rank 0.
struct Place {
  std::uint32_t color = 0;
  std::string address;
};
std::vector<std::byte> encode(const Place& place) {
  std::vector<std::byte> bytes(sizeof place.color + place.address.size());
  std::memcpy(bytes.data(), &place.color, sizeof place.color);
  std::memcpy(bytes.data() + sizeof place.color, place.address.data(), place.address.size());
  return bytes;
}
Result<Place> decode(std::span<const std::byte> bytes) {
  Place place;
  if (bytes.size() < sizeof place.color)
    return Error(ErrorCode::corrupted, operation).reason("a rank does not tell its color");
  std::memcpy(&place.color, bytes.data(), sizeof place.color);
  const auto rest = bytes.subspan(sizeof place.color);
  place.address.assign(reinterpret_cast<const char*>(rest.data()), rest.size());
  return place;
}

/// What the first rank of a color tells: its port, or why it cannot listen.
std::vector<std::byte> encode(std::uint16_t port) {
  std::vector<std::byte> bytes(sizeof port);
  std::memcpy(bytes.data(), &port, sizeof port);
  return bytes;
}
Result<std::uint16_t> decode_port(std::uint32_t rank, std::span<const std::byte> bytes) {
  std::uint16_t port = 0;
  if (bytes.size() == sizeof port) {
    std::memcpy(&port, bytes.data(), sizeof port);
    return port;
  }
  return Error(ErrorCode::peer_failed, operation)
      .reason("rank " + std::to_string(rank) + " cannot listen for the ranks of its color")
      .note("cause   " + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

constexpr const char* where = "where the first ranks of colors listen";

/// The first rank of a color, which tells its port to all ranks as soon as it listens.
Result<std::unique_ptr<ControlChannel>> join_as_first(ControlChannel& channel,
                                                      ControlChannel::Options options, bool only_here) {
  bool has_told = false;
  options.free_port = {.only_here = only_here,
                       .tell = [&channel, &has_told](std::uint16_t port) -> Result<void> {
                         has_told = true;
                         PENSTOCK_TRY(channel.gather_for_trainer(where, encode(port)));
                         return ok();
                       }};
  auto joined = ControlChannel::join(options);
  if (joined || has_told) return joined;
  const std::string text = joined.error().message();
  PENSTOCK_TRY(channel.gather_for_trainer(where, std::as_bytes(std::span(text))));
  return joined;
}

}  // namespace

Result<ChannelPart> split_channel(ControlChannel& channel, std::uint32_t color, const std::string& job,
                                  std::atomic<std::uint64_t>& splits, const control::Patience& patience) {
  const auto& [own, rank_0] = channel.addresses();
  const std::string number = "split " + std::to_string(splits + 1);
  PENSTOCK_TRY_ASSIGN(const auto places,
                      channel.gather_for_trainer(number, encode({.color = color, .address = own})));
  ++splits;
  std::vector<std::uint32_t> members;
  std::string first_address;
  bool all_on_host = true;  // of rank 0: no connection comes from another
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    PENSTOCK_TRY_ASSIGN(const Place place, decode(places[rank]));
    if (place.color != color) continue;
    if (members.empty()) first_address = place.address;
    members.push_back(rank);
    all_on_host = all_on_host && is_loopback(place.address);
  }
  ChannelPart part{
      .rank = static_cast<std::uint32_t>(std::ranges::find(members, channel.rank()) - members.begin()),
      .ranks = static_cast<std::uint32_t>(members.size()),
      .channel = nullptr};
  ControlChannel::Options options{
      .job = job + ", " + number + ", color " + std::to_string(color),
      .rank = part.rank,
      .ranks = part.ranks,
      // A rank that reaches rank 0 by the loopback is on its host.
      .rank_0 = {.host = is_loopback(first_address) ? rank_0 : first_address, .port = 0},
      .patience = patience};
  if (part.ranks > 1 && part.rank == 0) {
    PENSTOCK_TRY_ASSIGN(part.channel, join_as_first(channel, options, all_on_host));
    return part;
  }
  PENSTOCK_TRY_ASSIGN(const auto ports, channel.gather_for_trainer(where, {}));
  if (part.ranks == 1) return part;
  PENSTOCK_TRY_ASSIGN(options.rank_0.port, decode_port(members.front(), ports[members.front()]));
  PENSTOCK_TRY_ASSIGN(part.channel, ControlChannel::join(options));
  return part;
}

}  // namespace penstock::zero
