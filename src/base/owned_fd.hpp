#pragma once

#include <utility>

namespace penstock {

/// A file descriptor above 2 that closes itself. Move-only.
///
/// Where standard input, output or error is closed, the kernel gives its number to the next file that is opened, and
/// what the program prints would be written to that file.
class OwnedFd {
 public:
  OwnedFd() = default;
  /// Takes ownership of `fd`, which is -1 where the call that should have opened it failed, and moves it above 2. Where
  /// that fails, closes it and sets errno: check is_open() and errno after every call that opens.
  explicit OwnedFd(int fd) noexcept;
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd();

  [[nodiscard]] int get() const { return fd_; }
  /// Gives up ownership: the caller must close the descriptor.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace penstock
