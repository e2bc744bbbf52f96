#include "c/handles.hpp"

std::uint32_t penstock_abi_version(void) {
  return PENSTOCK_ABI_MAJOR * 65536u + PENSTOCK_ABI_MINOR;
}

const char* penstock_version(void) {
  return PENSTOCK_VERSION;
}

std::size_t penstock_lines_count(const penstock_lines* lines) {
  return lines == nullptr ? 0 : lines->lines.size();
}

const char* penstock_lines_get(const penstock_lines* lines, std::size_t index) {
  return index < penstock_lines_count(lines) ? lines->lines[index].c_str() : nullptr;
}

void penstock_lines_free(penstock_lines* lines) {
  delete lines;
}
