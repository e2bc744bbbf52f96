#include "gpt/text.hpp"

#include "gpt/counter_random.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

namespace gpt {

namespace {

namespace fs = std::filesystem;
using penstock::Error;
using penstock::Result;

constexpr const char* licences = "/usr/share/common-licenses";

Result<void> append_file(const fs::path& path, std::vector<std::uint8_t>& bytes) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::from_errno("Text::load", errno != 0 ? errno : EIO).object(path.string());
  std::array<char, 1 << 16> part;
  while (file.good() && bytes.size() <= Text::size_max.value()) {
    file.read(part.data(), part.size());  // sets badbit where the system call fails, for a directory too
    bytes.insert(bytes.end(), part.data(), part.data() + file.gcount());
  }
  if (file.bad()) return Error::from_errno("Text::load", errno != 0 ? errno : EIO).object(path.string());
  if (bytes.size() <= Text::size_max.value()) return penstock::ok();
  return Error::invalid_argument("Text::load")
      .object(path.string())
      .reason("the text is too long")
      .wanted("at most " + penstock::to_string(Text::size_max))
      .advice("train on a part of it");
}

// The files of the directory in order of name, without links (GPL -> GPL-3), which would repeat text.
Result<std::vector<fs::path>> licence_files() {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(licences, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_symlink() && entry->is_regular_file()) files.push_back(entry->path());
  }
  if (error) {
    return Error::from_errno("Text::load", error.value())
        .object(licences)
        .advice("name a text file to train on");
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<Text> Text::load(const std::optional<fs::path>& file, std::uint32_t context) {
  std::vector<std::uint8_t> bytes;
  if (file) {
    PENSTOCK_TRY(append_file(*file, bytes));
  } else {
    PENSTOCK_TRY_ASSIGN(auto files, licence_files());
    for (const fs::path& path : files) PENSTOCK_TRY(append_file(path, bytes));
  }
  if (bytes.size() <= context) {
    return Error::invalid_argument("Text::load")
        .object(file ? file->string() : licences)
        .reason(bytes.empty() ? "the text is empty" : "the text is shorter than one sequence and its target")
        .wanted(penstock::ByteCount(std::uint64_t{context} + 1))
        .got(penstock::ByteCount(bytes.size()));
  }
  return Text(std::move(bytes));
}

void Text::batch(std::uint64_t seed, BatchPosition position, BatchSize size, std::span<std::uint8_t> tokens,
                 std::span<std::uint8_t> targets) const {
  const std::uint64_t count = std::uint64_t{size.sequences} * size.context;
  PENSTOCK_CHECK(tokens.size() == count && targets.size() == count && size.context < bytes_.size());
  const std::uint64_t starts = bytes_.size() - size.context;
  for (std::uint32_t sequence = 0; sequence < size.sequences; ++sequence) {
    const std::uint64_t start =
        random_bits({seed, position.step, position.micro_batch, position.rank, sequence}) % starts;
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(start);
    const std::size_t row = std::size_t{sequence} * size.context;
    std::copy_n(first, size.context, tokens.begin() + static_cast<std::ptrdiff_t>(row));
    std::copy_n(first + 1, size.context, targets.begin() + static_cast<std::ptrdiff_t>(row));
  }
}

}  // namespace gpt
