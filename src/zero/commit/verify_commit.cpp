#include "zero/commit/verify_commit.hpp"

#include "base/start_thread.hpp"
#include "zero/commit/committed_blocks.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace penstock::zero {

namespace {

struct Work {
  const Manifest* manifest;
  const CommittedTensor* tensor;
};

/// One thread's: its files and its memory.
class Reader {
 public:
  Reader(tiers::FileSystem& files, PageBuffer buffer) : files_(files), buffer_(std::move(buffer)) {}

  /// Calls `count` with the bytes of each window.
  template <class Count>
  Result<void> read(const Work& work, const Count& count) {
    const CommittedTensor& tensor = *work.tensor;
    const std::string& name = work.manifest->files[tensor.file];
    auto file = open_.find(name);
    if (file == open_.end()) {
      PENSTOCK_TRY_ASSIGN(auto opened, files_.open(name, tiers::DirectIo::preferred));
      file = open_.emplace(name, std::move(opened)).first;
    }
    const ByteCount window = tensor.block * window_blocks;
    for (ByteCount begin; begin < tensor.size; begin += window) {
      const ByteCount size = std::min(window, tensor.size - begin);
      PENSTOCK_TRY(read_blocks(file->second, name, tensor, begin, size, buffer_));
      count(size);
    }
    return ok();
  }

 private:
  tiers::FileSystem& files_;
  PageBuffer buffer_;
  std::map<std::string, tiers::File> open_;
};

}  // namespace

Result<VerifiedCommit> verify_commit(tiers::FileSystem& files, std::span<const Manifest> manifests,
                                     std::uint32_t threads, const std::function<void(ByteCount)>& progress) {
  std::vector<Work> all;
  ByteCount window;
  for (const Manifest& manifest : manifests) {
    for (const CommittedTensor& tensor : manifest.tensors) {
      all.push_back({&manifest, &tensor});
      window = std::max(window, std::min(tensor.block * window_blocks, tensor.size));
    }
  }
  std::mutex mutex;  // of what follows
  VerifiedCommit verified{.tensors = all.size()};
  std::size_t next = 0;
  const auto run = [&](Reader& reader) {
    while (true) {
      std::unique_lock lock(mutex);
      if (next == all.size()) return;
      const Work work = all[next++];
      lock.unlock();
      const auto read = reader.read(work, [&](ByteCount size) {
        const std::lock_guard counting(mutex);
        verified.bytes += size;
        progress(verified.bytes);
      });
      if (read) continue;
      lock.lock();
      verified.damaged.push_back(read.error());
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
    auto thread = start_thread("verify_commit", "a reader", [&run, &reader = readers[i]] { run(reader); });
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
  return verified;
}

}  // namespace penstock::zero
