#include <penstock/c/memory.h>

#include "c/handles.hpp"
#include "tiers/memory/host_arena.hpp"

#include <utility>

struct penstock_memory {
  penstock::tiers::HostArena arena;
  penstock::c::HandleProcess process = {};
};

using namespace penstock;

penstock_error* penstock_memory_create(std::uint64_t bytes, penstock_pinning pinning,
                                       penstock_memory** memory, void** data) {
  const char* const function = __func__;
  return c::call(function, {{"memory", memory}, {"data", data}}, [&]() -> Result<void> {
    if (bytes == 0) return Error::invalid_argument(function).object("bytes").wanted("more than 0").got("0");
    PENSTOCK_TRY_ASSIGN(const auto pins, c::enumerator<tiers::Pinning>(function, "pinning", pinning,
                                                                       PENSTOCK_PIN_REQUIRED + 1));
    PENSTOCK_TRY_ASSIGN(auto arena, tiers::HostArena::create({.size = ByteCount(bytes),
                                                              .pinning = pins,
                                                              .is_inherited = pins == tiers::Pinning::none}));
    *data = arena.bytes().data();
    c::give(memory, penstock_memory{std::move(arena)});
    return ok();
  });
}

std::int32_t penstock_memory_is_pinned(const penstock_memory* memory) {
  return memory != nullptr && memory->arena.pinned() ? 1 : 0;
}

penstock_error* penstock_memory_notes(const penstock_memory* memory, penstock_lines** lines) {
  return c::call(__func__, {{"memory", memory}, {"lines", lines}}, [&]() -> Result<void> {
    penstock_lines notes;
    if (!memory->arena.notes().empty()) notes.lines.push_back(memory->arena.notes());
    c::give(lines, std::move(notes));
    return ok();
  });
}

void penstock_memory_free(penstock_memory* memory) {
  c::end(memory);
}
