#include "kit/scratch_directory.hpp"

#include <penstock/base/check.hpp>

#include <cstdlib>
#include <iterator>
#include <string>

namespace penstock::test {

ScratchDirectory::ScratchDirectory() {
  const char* chosen = std::getenv("PENSTOCK_TEST_DIR");
  std::string pattern =
      (chosen ? std::string(chosen) : std::filesystem::current_path().string()) + "/penstock-test-XXXXXX";
  PENSTOCK_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // a test that failed half-way may have left anything here
  std::filesystem::remove_all(path_, ignored);
}

std::size_t ScratchDirectory::entry_count() const {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
}

}  // namespace penstock::test
