#include "zero/commit/read_commit.hpp"

#include "base/start_thread.hpp"
#include "zero/commit/committed_blocks.hpp"
#include "zero/layout/padded.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace penstock::zero {

namespace {

struct Work {
  std::size_t manifest, tensor;
};

using Visit = std::function<Result<void>(const CommittedWindow&)>;

/// One thread's: its files and its memory.
class Reader {
 public:
  Reader(tiers::FileSystem& files, PageBuffer buffer) : files_(files), buffer_(std::move(buffer)) {}

  Result<void> read(std::span<const Manifest> manifests, const Work& work, const Visit& visit) {
    const Manifest& manifest = manifests[work.manifest];
    const CommittedTensor& tensor = manifest.tensors[work.tensor];
    const std::string& name = manifest.files[tensor.file];
    auto file = open_.find(name);
    if (file == open_.end()) {
      auto opened = files_.open_to_read(name, tiers::DirectIo::preferred);
      if (!opened) return std::move(opened).error().note("tensor  " + to_string(tensor.key));
      file = open_.emplace(name, std::move(*opened)).first;
    }
    const ByteCount window = tensor.block * window_blocks;
    for (ByteCount begin; begin < tensor.size; begin += window) {
      const ByteCount size = std::min(window, tensor.size - begin);
      PENSTOCK_TRY_ASSIGN(const HostSpan bytes,
                          read_blocks(file->second, name, tensor, begin, size, buffer_));
      PENSTOCK_TRY(visit({.manifest = work.manifest,
                          .tensor = work.tensor,
                          .begin = begin,
                          .bytes = bytes,
                          .padded = buffer_.bytes().subspan({}, round_up(size, extent_alignment))}));
    }
    return ok();
  }

 private:
  tiers::FileSystem& files_;
  PageBuffer buffer_;
  std::map<std::string, tiers::File> open_;
};

}  // namespace

Result<std::vector<Error>> read_commit(tiers::FileSystem& files, std::span<const Manifest> manifests,
                                       std::uint32_t threads, const Visit& visit) {
  std::vector<Work> all;
  ByteCount window;
  for (std::size_t m = 0; m < manifests.size(); ++m) {
    for (std::size_t t = 0; t < manifests[m].tensors.size(); ++t) {
      const CommittedTensor& tensor = manifests[m].tensors[t];
      all.push_back({m, t});
      window = std::max(window, std::min(tensor.block * window_blocks, tensor.size));
    }
  }
  std::mutex mutex;  // of what follows
  std::vector<Error> errors;
  std::size_t next = 0;
  const auto run = [&](Reader& reader) {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == all.size()) return;
      const Work work = all[next++];
      lock.unlock();
      const auto read = reader.read(manifests, work, visit);
      if (read) continue;
      lock.lock();
      errors.push_back(read.error());
    }
  };
  std::vector<Reader> readers;
  for (std::uint32_t i = 0; i < std::max(threads, 1u); ++i) {
    PENSTOCK_TRY_ASSIGN(auto buffer, PageBuffer::create(std::max(window, 4_KiB)));
    readers.emplace_back(files, std::move(buffer));
  }
  std::vector<std::thread> running;
  Result<void> started = ok();
  for (std::size_t i = 1; i < readers.size() && started; ++i) {
    auto thread = start_thread("read_commit", "a reader", [&run, &reader = readers[i]] { run(reader); });
    if (thread) {
      running.push_back(*std::move(thread));
    } else {
      started = thread.error();
    }
  }
  if (started) run(readers.front());
  {
    const std::lock_guard lock(mutex);
    if (!started) next = all.size();
  }
  for (std::thread& thread : running) thread.join();
  PENSTOCK_TRY(started);
  return errors;
}

}  // namespace penstock::zero
