#include "zero/commit/copy_commit.hpp"

#include "zero/commit/read_commit.hpp"
#include "zero/commit/small_files.hpp"
#include "zero/layout/padded.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

constexpr std::uint32_t threads = 4;  // so that reads and writes overlap

/// The manifest of a copy, in which the tensors follow each other.
Manifest moved(const Manifest& manifest, const std::filesystem::path& name) {
  Manifest copy = manifest;
  copy.files = {name.string()};
  FileOffset next;
  for (CommittedTensor& tensor : copy.tensors) {
    tensor.file = 0;
    tensor.offset = next;
    tensor.length = round_up(tensor.size, extent_alignment);
    next = next + tensor.length;
  }
  return copy;
}

ByteCount bytes_of(const Manifest& copy) {
  ByteCount size;
  for (const CommittedTensor& tensor : copy.tensors) size += tensor.length;
  return size;
}

/// Errors: unsupported, if the bytes must be written.
Result<void> clone(tiers::FileSystem& files, const Manifest& from, const Manifest& to) {
  PENSTOCK_TRY_ASSIGN(tiers::File file, files.create(to.files.front(), {}, tiers::DirectIo::off));
  std::map<std::uint32_t, tiers::File> sources;
  for (std::size_t i = 0; i < from.tensors.size(); ++i) {
    const CommittedTensor &original = from.tensors[i], &copy = to.tensors[i];
    auto source = sources.find(original.file);
    if (source == sources.end()) {
      PENSTOCK_TRY_ASSIGN(auto opened, files.open_to_read(from.files[original.file], tiers::DirectIo::off));
      source = sources.emplace(original.file, std::move(opened)).first;
    }
    PENSTOCK_TRY(file.clone(source->second, original.offset, copy.offset, copy.length));
  }
  return file.sync();
}

Result<void> write(tiers::FileSystem& files, const Manifest& from, const Manifest& to) {
  PENSTOCK_TRY_ASSIGN(tiers::File file,
                      files.create(to.files.front(), bytes_of(to), tiers::DirectIo::preferred));
  std::mutex mutex;  // a File is used by one thread at a time
  std::vector<tiers::File> idle;
  const auto write_window = [&](const CommittedWindow& window) -> Result<void> {
    std::unique_lock lock(mutex);
    if (idle.empty()) {
      lock.unlock();
      PENSTOCK_TRY_ASSIGN(auto opened, files.open(to.files.front(), tiers::DirectIo::preferred));
      lock.lock();
      idle.push_back(std::move(opened));
    }
    tiers::File own = std::move(idle.back());
    idle.pop_back();
    lock.unlock();
    PENSTOCK_TRY(own.write(to.tensors[window.tensor].offset + window.begin, window.padded));
    lock.lock();
    idle.push_back(std::move(own));
    return ok();
  };
  PENSTOCK_TRY_ASSIGN(const auto errors, read_commit(files, {&from, 1}, threads, write_window));
  if (!errors.empty()) return errors.front();
  return file.sync();
}

}  // namespace

Result<CopiedCommit> copy_commit(tiers::FileSystem& files, const Manifest& manifest,
                                 const std::filesystem::path& name) {
  CopiedCommit copied{.manifest = moved(manifest, name)};
  PENSTOCK_TRY(remove_if_there(files, name));
  auto done = clone(files, manifest, copied.manifest);
  const bool is_cloned = done.has_value();
  if (!done && done.error().code() == ErrorCode::unsupported) {
    PENSTOCK_TRY(remove_if_there(files, name));
    done = write(files, manifest, copied.manifest);
  }
  if (!done) {
    (void)remove_if_there(files, name);
    return done.error();
  }
  (is_cloned ? copied.cloned : copied.written) = bytes_of(copied.manifest);
  return copied;
}

}  // namespace penstock::zero
