#pragma once

#include <filesystem>

namespace penstock::test {

/// A new empty directory under $PENSTOCK_TEST_DIR (else on the build directory's file system). The destructor removes
/// it with its contents.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// The number of its entries, to check that no file was left.
  [[nodiscard]] std::size_t entry_count() const;

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::test
