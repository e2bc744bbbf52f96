#pragma once

#include <utility>

namespace penstock {

/// A file descriptor that closes itself. Move-only.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
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
