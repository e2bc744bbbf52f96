#pragma once

#include <filesystem>

namespace penstock::test {

/// A new empty directory under $PENSTOCK_TEST_DIR (else the build directory's file system), removed with
/// all it holds on destruction.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// How many entries it holds, to show that nothing was left behind.
  [[nodiscard]] std::size_t entry_count() const;

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::test
