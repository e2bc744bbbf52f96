#pragma once

#include <penstock/base/result.hpp>

#include <utility>

namespace penstock::swap::test {

/// The value of `create()`, whose deadline a test has made short: repeated while a loaded machine does not make the
/// file in that time. What `create` captures outlives the test, or is captured by value: an abandoned call uses it.
template <class Create>
auto create_patiently(const Create& create) {
  auto made = create();
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (made || made.error().code() != ErrorCode::deadline_exceeded) break;
    made = create();
  }
  return std::move(made).value();
}

}  // namespace penstock::swap::test
