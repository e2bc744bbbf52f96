#include "c/process_group.hpp"

#include <penstock/zero/launch/launch.hpp>

#include <span>

namespace {

using namespace penstock;
using zero::ProcessGroupOptions;

static_assert(PENSTOCK_CARRIER_MPI == static_cast<int>(zero::Carrier::mpi));

Result<ProcessGroupOptions> of_launcher() {
  PENSTOCK_TRY_ASSIGN(const zero::Launch launch, zero::find_launch());
  if (launch.ranks == 1) return ProcessGroupOptions{};
  return ProcessGroupOptions::of(launch);
}

Result<ProcessGroupOptions> read(const char* function, const penstock_process_group_options* given) {
  if (given == nullptr) return of_launcher();
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", given));
  ProcessGroupOptions options;
  if (from.without_launcher == 0) {
    PENSTOCK_TRY_ASSIGN(options, of_launcher());
  } else {
    options.rank = from.rank;
    options.ranks = from.ranks;
    options.rank_0 = {.host = from.host == nullptr ? "" : from.host, .port = from.port};
  }
  PENSTOCK_TRY_ASSIGN(options.carrier, c::enumerator<zero::Carrier>(function, "options.carrier", from.carrier,
                                                                    PENSTOCK_CARRIER_MPI + 1));
  PENSTOCK_TRY_ASSIGN(options.join_deadline, c::duration(function, "options.join_seconds", from.join_seconds,
                                                         options.join_deadline));
  PENSTOCK_TRY_ASSIGN(options.silence_max, c::duration(function, "options.silence_seconds",
                                                       from.silence_seconds, options.silence_max));
  PENSTOCK_TRY_ASSIGN(options.deadline, c::duration(function, "options.deadline_seconds",
                                                    from.deadline_seconds, options.deadline));
  return options;
}

}  // namespace

penstock_error* penstock_process_group_join(const penstock_process_group_options* options,
                                            penstock_process_group** group) {
  const char* const function = __func__;
  return c::call(function, {{"group", group}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto read_options, read(function, options));
    PENSTOCK_TRY_ASSIGN(auto joined, zero::ProcessGroup::join(read_options));
    c::give(group, penstock_process_group{std::move(joined)});
    return ok();
  });
}

void penstock_process_group_free(penstock_process_group* group) {
  c::end(group);
}

penstock_error* penstock_process_group_identity(const penstock_process_group* group,
                                                penstock_rank_identity* identity) {
  const char* const function = __func__;
  return c::call(function, {{"identity", identity}}, [&]() -> Result<void> {
    PENSTOCK_TRY(c::check_written_struct(function, "identity", identity));
    const zero::RankIdentity own = group == nullptr ? zero::RankIdentity{} : group->group->identity();
    c::write_struct(
        identity,
        {.rank = own.rank, .ranks = own.ranks, .local_rank = own.local_rank, .local_ranks = own.local_ranks});
    return ok();
  });
}

penstock_error* penstock_process_group_split(penstock_process_group* group, std::uint32_t color,
                                             penstock_process_group** part) {
  return c::call(__func__, {{"group", group}, {"part", part}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(auto made, group->group->split(color));
    c::give(part, penstock_process_group{std::move(made)});
    return ok();
  });
}

penstock_error* penstock_process_group_gather(penstock_process_group* group, const char* label,
                                              const void* mine, std::uint64_t bytes, void* all) {
  const char* const function = __func__;
  return c::call(function, {{"group", group}, {"label", label}, {"mine", mine}, {"all", all}},
                 [&]() -> Result<void> {
                   constexpr std::uint64_t most = std::uint64_t{1} << 20;
                   if (const std::uint32_t ranks = group->group->identity().ranks; bytes > most / ranks) {
                     return Error::invalid_argument(function)
                         .object("bytes")
                         .reason("the bytes of all ranks are too many")
                         .wanted("at most " + std::to_string(most / ranks) + " of each of " +
                                 std::to_string(ranks) + " ranks")
                         .got(bytes);
                   }
                   PENSTOCK_TRY_ASSIGN(
                       const auto slots,
                       group->group->gather(label, std::span(static_cast<const std::byte*>(mine), bytes)));
                   for (std::size_t rank = 0; rank < slots.size(); ++rank) {
                     if (slots[rank].size() == bytes) continue;
                     return Error::invalid_argument(function)
                         .object("bytes of rank " + std::to_string(rank))
                         .reason("the ranks have passed different numbers of bytes")
                         .wanted(ByteCount(bytes))
                         .got(ByteCount(slots[rank].size()));
                   }
                   auto* to = static_cast<std::byte*>(all);
                   for (const auto& slot : slots) to = std::copy(slot.begin(), slot.end(), to);
                   return ok();
                 });
}

penstock_error* penstock_process_group_take_messages(penstock_process_group* group, penstock_lines** lines) {
  return c::call(__func__, {{"group", group}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{group->group->take_messages()});
    return ok();
  });
}
