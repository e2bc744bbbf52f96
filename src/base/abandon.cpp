#include "base/abandon.hpp"

#include <mutex>
#include <vector>

namespace penstock {

void keep_for_ever(std::shared_ptr<void> object) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::shared_ptr<void>> objects;
  };
  static Kept& kept = *new Kept;  // never destroyed
  const std::lock_guard lock(kept.mutex);
  kept.objects.push_back(std::move(object));
}

}  // namespace penstock
