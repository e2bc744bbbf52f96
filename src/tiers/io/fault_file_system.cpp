#include <penstock/tiers/io/fault_file_system.hpp>

#include "tiers/io/file_errors.hpp"

#include <numeric>

namespace penstock::tiers {

namespace {

bool fails(const std::optional<FileSystemFault>& fault) {
  return fault && fault->effect == FileSystemFault::Effect::fail;
}

bool makes_a_file(FileSystemFault::Operation operation) {
  using Operation = FileSystemFault::Operation;
  return operation == Operation::create_scratch || operation == Operation::create ||
         operation == Operation::open;
}

}  // namespace

std::uint64_t FaultFileSystem::count_of(std::optional<Operation> operation) const {
  if (operation) return accepted_[static_cast<std::size_t>(*operation)];
  return std::accumulate(accepted_.begin(), accepted_.end(), std::uint64_t{0});
}

std::uint64_t FaultFileSystem::accepted(std::optional<Operation> operation) const {
  const std::lock_guard lock(mutex_);
  return count_of(operation);
}

std::uint64_t FaultFileSystem::struck() const {
  const std::lock_guard lock(mutex_);
  return struck_;
}

/// The fault that this call of that kind meets.
std::optional<FileSystemFault> FaultFileSystem::strike(Operation operation) {
  using Effect = FileSystemFault::Effect;
  const std::lock_guard lock(mutex_);
  std::optional<FileSystemFault> struck;
  for (const FileSystemFault& fault : plan_) {
    if (fault.operation && *fault.operation != operation) continue;
    if (fault.effect == Effect::buffered && !makes_a_file(operation)) continue;
    const std::uint64_t number = count_of(fault.operation);
    if (number < fault.occurrence || number - fault.occurrence >= fault.count) continue;
    struck = fault;
    ++struck_;
    break;
  }
  ++accepted_[static_cast<std::size_t>(operation)];
  return struck;
}

/// A file of the file system within becomes one of ours.
File FaultFileSystem::adopt(File file, std::string direct_note) {
  File::Properties properties = file.properties();
  if (!direct_note.empty()) properties.direct_note = std::move(direct_note);
  const std::lock_guard lock(mutex_);
  files_.insert_or_assign(properties.handle, std::move(file));
  return File(*this, std::move(properties));
}

File& FaultFileSystem::within(const File::Properties& file) {
  const std::lock_guard lock(mutex_);
  return files_.at(file.handle);
}

void FaultFileSystem::close(FileHandle handle) noexcept {
  const std::lock_guard lock(mutex_);
  files_.erase(handle);
}

template <class Make>
Result<File> FaultFileSystem::make_file(const std::optional<FileSystemFault>& fault, const char* operation,
                                        const std::filesystem::path& path, DirectIo direct,
                                        const Make& make) {
  const std::string why = fault ? "a fault of the plan" : "";
  if (fault && direct == DirectIo::required) return no_direct_io(operation, path, why);
  auto file = make(fault ? DirectIo::off : direct);
  if (!file) return file;
  return adopt(std::move(*file), direct == DirectIo::off ? "" : why);
}

Result<File> FaultFileSystem::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                             DirectIo direct) {
  constexpr const char* operation = "FileSystem::create_scratch";
  const auto fault = strike(Operation::create_scratch);
  if (fails(fault)) {
    return reserve_error(operation, directory, size, fault->error, within_.free_space(directory));
  }
  return make_file(fault, operation, directory, direct,
                   [&](DirectIo found) { return within_.create_scratch(directory, size, found); });
}

Result<File> FaultFileSystem::create(const std::filesystem::path& path, ByteCount size, DirectIo direct) {
  constexpr const char* operation = "FileSystem::create";
  const auto fault = strike(Operation::create);
  if (fails(fault) && fault->error == ENOSPC) {
    return reserve_error(operation, path, size, ENOSPC, within_.free_space(path.parent_path()));
  }
  if (fails(fault)) return file_error(operation, path.string(), fault->error);
  return make_file(fault, operation, path, direct,
                   [&](DirectIo found) { return within_.create(path, size, found); });
}

Result<File> FaultFileSystem::open(const std::filesystem::path& path, DirectIo direct) {
  constexpr const char* operation = "FileSystem::open";
  const auto fault = strike(Operation::open);
  if (fails(fault)) return file_error(operation, path.string(), fault->error);
  return make_file(fault, operation, path, direct, [&](DirectIo found) { return within_.open(path, found); });
}

Result<void> FaultFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const auto fault = strike(Operation::rename)) {
    return file_error("FileSystem::rename", renamed(from, to), fault->error);
  }
  return within_.rename(from, to);
}

Result<void> FaultFileSystem::remove(const std::filesystem::path& path) {
  if (const auto fault = strike(Operation::remove)) {
    return file_error("FileSystem::remove", path.string(), fault->error);
  }
  return within_.remove(path);
}

Result<std::vector<std::string>> FaultFileSystem::list(const std::filesystem::path& directory) {
  if (const auto fault = strike(Operation::list)) {
    return file_error("FileSystem::list", directory.string(), fault->error);
  }
  return within_.list(directory);
}

Result<void> FaultFileSystem::sync_directory(const std::filesystem::path& directory) {
  if (const auto fault = strike(Operation::sync_directory)) {
    return sync_error("FileSystem::sync_directory", directory.string(), fault->error);
  }
  return within_.sync_directory(directory);
}

Result<DirectoryLock> FaultFileSystem::lock(const std::filesystem::path& directory) {
  const auto fault = strike(Operation::lock);
  if (fault && fault->error == EWOULDBLOCK) return locked_error(directory, std::nullopt);
  if (fault) return file_error("FileSystem::lock", directory.string(), fault->error);
  return within_.lock(directory);
}

Result<ByteCount> FaultFileSystem::free_space(const std::filesystem::path& directory) {
  if (const auto fault = strike(Operation::free_space)) {
    return file_error("FileSystem::free_space", directory.string(), fault->error);
  }
  return within_.free_space(directory);
}

Result<ByteCount> FaultFileSystem::size(const File::Properties& file) {
  if (const auto fault = strike(Operation::size)) return file_error("File::size", file.name, fault->error);
  return within(file).size();
}

Result<void> FaultFileSystem::extend(const File::Properties& file, ByteCount size) {
  if (const auto fault = strike(Operation::extend)) {
    return extend_error(file.name, size, fault->error);
  }
  return within(file).extend(size);
}

Result<void> FaultFileSystem::read(const File::Properties& file, FileOffset offset, HostSpan into) {
  if (const auto fault = strike(Operation::read)) {
    return transfer_error("File::read", file.name, offset, into.size(), fault->error);
  }
  return within(file).read(offset, into);
}

Result<void> FaultFileSystem::write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) {
  if (const auto fault = strike(Operation::write)) {
    return transfer_error("File::write", file.name, offset, bytes.size(), fault->error);
  }
  return within(file).write(offset, bytes);
}

Result<void> FaultFileSystem::sync(const File::Properties& file) {
  if (const auto fault = strike(Operation::sync)) return sync_error("File::sync", file.name, fault->error);
  return within(file).sync();
}

}  // namespace penstock::tiers
