#pragma once

#include <penstock/tiers/io/sim_disk.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {

/// A simulated disk with the directory "/d", for small texts. A name is one in "/d", or a whole path.
struct SmallDisk {
  using Names = std::vector<std::string>;

  SmallDisk() { sim.make_directory("/d"); }

  static std::filesystem::path path(const char* name) { return std::filesystem::path("/d") / name; }

  File make(const char* name, const std::string& text) {
    File file = sim.create(path(name), 0_B, DirectIo::off).value();
    write(file, 0, text);
    return file;
  }
  static void write(File& file, std::uint64_t offset, const std::string& text) {
    file.write(FileOffset(offset), ConstHostSpan(std::span(text))).value();
  }
  std::string text_of(const char* name) {
    const File file = sim.open(path(name), DirectIo::off).value();
    std::string text(file.size().value().value(), '\0');
    file.read(FileOffset(0), HostSpan(std::span(text))).value();
    return text;
  }
  /// None where there is no such name.
  std::optional<std::string> find(const char* name) {
    if (!sim.open(path(name), DirectIo::off)) return std::nullopt;
    return text_of(name);
  }
  Names names() { return sim.list("/d").value(); }

  SimDisk sim{{.capacity = 1_MiB}};
};

}  // namespace penstock::tiers
