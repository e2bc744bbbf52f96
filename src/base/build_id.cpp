#include "base/build_id.hpp"

#include <elf.h>
#include <link.h>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace penstock {

namespace {

struct Search {
  std::uintptr_t address;
  std::string id;
};

/// Of one note: a size of the name, a size of the value, a type, then both at multiples of four bytes.
/// https://www.sco.com/developers/gabi/latest/ch5.pheader.html#note_section
std::string id_in_notes(const char* at, std::size_t size) {
  const auto padded = [](std::size_t length) { return (length + 3) / 4 * 4; };
  ElfW(Nhdr) note;
  while (size >= sizeof note) {
    std::memcpy(&note, at, sizeof note);
    const std::size_t whole = sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
    if (whole > size) break;
    if (note.n_type == NT_GNU_BUILD_ID &&
        std::string_view(at + sizeof note, note.n_namesz) == std::string_view("GNU", 4)) {
      std::string digits;
      const auto* const value =
          reinterpret_cast<const unsigned char*>(at + sizeof note + padded(note.n_namesz));
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        digits += "0123456789abcdef"[value[i] / 16];
        digits += "0123456789abcdef"[value[i] % 16];
      }
      return digits;
    }
    at += whole;
    size -= whole;
  }
  return {};
}

int examine(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool contains = false;
  std::string id;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD)
      contains |= search.address >= begin && search.address < begin + segment.p_memsz;
    if (segment.p_type == PT_NOTE && id.empty())
      id = id_in_notes(reinterpret_cast<const char*>(begin), segment.p_memsz);
  }
  if (contains) search.id = std::move(id);
  return contains ? 1 : 0;
}

}  // namespace

std::string build_id() {
  Search search{reinterpret_cast<std::uintptr_t>(&build_id), {}};
  ::dl_iterate_phdr(examine, &search);
  return search.id;
}

}  // namespace penstock
