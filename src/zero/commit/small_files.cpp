#include "zero/commit/small_files.hpp"

#include <span>

namespace penstock::zero {

std::filesystem::path directory_above(const std::filesystem::path& directory) {
  const std::filesystem::path above = (directory / "").lexically_normal().parent_path().parent_path();
  return above.empty() ? "." : above;
}

Result<void> ensure_directory(tiers::FileSystem& files, const std::filesystem::path& path) {
  auto made = files.create_directory(path);
  if (!made && made.error().code() != ErrorCode::already_exists) return made;
  // One that is there may have been made by a process that was killed before it could sync.
  return files.sync_directory(directory_above(path));
}

Result<void> remove_if_there(tiers::FileSystem& files, const std::filesystem::path& name) {
  auto removed = files.remove(name);
  return removed || removed.error().code() == ErrorCode::not_found ? ok() : removed;
}

Result<void> replace_file(tiers::FileSystem& files, const std::filesystem::path& name,
                          const std::string& unfinished, ConstHostSpan bytes) {
  const std::filesystem::path directory = name.parent_path(), other = directory / unfinished;
  PENSTOCK_TRY(remove_if_there(files, other));
  {
    PENSTOCK_TRY_ASSIGN(tiers::File file, files.create(other, bytes.size(), tiers::DirectIo::off));
    PENSTOCK_TRY(file.write(FileOffset(0), bytes));
    PENSTOCK_TRY(file.sync());
  }
  PENSTOCK_TRY(files.rename(other, name));
  return files.sync_directory(directory.empty() ? "." : directory);
}

Result<std::string> read_text(tiers::FileSystem& files, const std::filesystem::path& name, std::size_t most) {
  PENSTOCK_TRY_ASSIGN(const tiers::File file, files.open_to_read(name, tiers::DirectIo::off));
  PENSTOCK_TRY_ASSIGN(const ByteCount size, file.size());
  if (size > ByteCount(most)) {
    return Error::invalid_argument("read_text")
        .object(name.string())
        .reason("the file is too long")
        .wanted("at most " + to_string(ByteCount(most)))
        .got(size);
  }
  std::string text(size.value(), '\0');
  PENSTOCK_TRY(file.read(FileOffset(0), HostSpan(std::span(text))));
  return text;
}

}  // namespace penstock::zero
