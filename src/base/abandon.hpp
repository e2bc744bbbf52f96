#pragma once

#include <memory>
#include <utility>

namespace penstock {

/// Keeps an object until the process ends. Safe from any thread.
void keep_for_ever(std::shared_ptr<void> object);

/// Moves `object` to where it is never destroyed: something that may never end still uses what it owns.
template <class T>
void abandon(T object) {
  keep_for_ever(std::make_shared<T>(std::move(object)));
}

}  // namespace penstock
