#include "zero/commit/verify_commit.hpp"

#include "zero/commit/read_commit.hpp"

#include <mutex>

namespace penstock::zero {

Result<VerifiedCommit> verify_commit(tiers::FileSystem& files, std::span<const Manifest> manifests,
                                     std::uint32_t threads, const std::function<void(ByteCount)>& progress) {
  VerifiedCommit verified;
  std::mutex mutex;
  const auto count = [&](const CommittedWindow& window) -> Result<void> {
    const std::lock_guard counting(mutex);
    verified.bytes += window.bytes.size();
    progress(verified.bytes);
    return ok();
  };
  for (const Manifest& manifest : manifests) verified.tensors += manifest.tensors.size();
  PENSTOCK_TRY_ASSIGN(verified.damaged, read_commit(files, manifests, threads, count));
  return verified;
}

}  // namespace penstock::zero
