#include <penstock/tiers/io/file_system.hpp>

#include <unistd.h>

namespace penstock::tiers {

File::~File() {
  if (file_system_ != nullptr) file_system_->close(properties_.handle);
}

namespace {
Error not_open(const char* operation) {
  return Error::invalid_argument(operation).object("file").reason("a default or moved-from File is not open");
}
}  // namespace

Result<ByteCount> File::size() const {
  if (file_system_ == nullptr) return not_open("File::size");
  return file_system_->size(properties_);
}

Result<void> File::extend(ByteCount size) {
  if (file_system_ == nullptr) return not_open("File::extend");
  return file_system_->extend(properties_, size);
}

Result<void> File::read(FileOffset offset, HostSpan into) const {
  if (file_system_ == nullptr) return not_open("File::read");
  return file_system_->read(properties_, offset, into);
}

Result<void> File::write(FileOffset offset, ConstHostSpan bytes) {
  if (file_system_ == nullptr) return not_open("File::write");
  return file_system_->write(properties_, offset, bytes);
}

Result<void> File::sync() {
  if (file_system_ == nullptr) return not_open("File::sync");
  return file_system_->sync(properties_);
}

DirectoryLock::DirectoryLock(File lock_file) : lock_file_(std::move(lock_file)), owner_(::getpid()) {}

DirectoryLock::~DirectoryLock() {
  if (lock_file_.file_system_ != nullptr && owner_ == ::getpid()) {
    lock_file_.file_system_->unlock(lock_file_.handle());
  }
}

}  // namespace penstock::tiers
