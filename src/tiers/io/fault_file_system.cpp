#include <penstock/tiers/io/fault_file_system.hpp>

#include "tiers/io/file_errors.hpp"
#include "tiers/io/kill_process.hpp"

#include <array>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

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

struct FaultFileSystem::State {
  /// The fault that this call meets, if any; counts the call.
  [[nodiscard]] std::optional<FileSystemFault> next_fault(Operation operation);
  /// Requires `mutex`.
  [[nodiscard]] std::uint64_t count_of(std::optional<Operation> operation) const {
    if (operation) {
      const auto index = static_cast<std::size_t>(*operation);
      return index < accepted.size() ? accepted[index] : 0;
    }
    return std::accumulate(accepted.begin(), accepted.end(), std::uint64_t{0});
  }
  /// Makes a file by `make`, a Result<File>(DirectIo), without direct I/O if `fault` says so, and returns a file of
  /// `owner` in its place.
  template <class Make>
  [[nodiscard]] Result<File> make_file(FileSystem& owner, const std::optional<FileSystemFault>& fault,
                                       const char* operation, const std::filesystem::path& path,
                                       DirectIo direct, const Make& make);
  /// The wrapped file system's file behind a file of ours; one that is not open behind a handle that is not ours.
  [[nodiscard]] File& wrapped_file(const File::Properties& file) {
    const std::lock_guard lock(mutex);
    const auto found = files.find(file.handle);
    return found != files.end() ? found->second : none;
  }

  FileSystem& wrapped;
  FileSystemFaultPlan plan;
  mutable std::mutex mutex{};
  std::array<std::uint64_t, FileSystemFault::operation_count> accepted{};  // by operation
  std::uint64_t injected = 0;
  File none{};
  std::map<FileHandle, File> files{};  // of the wrapped file system, by the handle that both share
};

FaultFileSystem::FaultFileSystem(FileSystem& wrapped, FileSystemFaultPlan plan)
    : state_(new State{.wrapped = wrapped, .plan = std::move(plan)}) {}

FaultFileSystem::~FaultFileSystem() = default;

void FaultFileSystem::add(const FileSystemFault& fault) {
  const std::lock_guard lock(state_->mutex);
  state_->plan.push_back(fault);
}

std::uint64_t FaultFileSystem::accepted(std::optional<Operation> operation) const {
  const std::lock_guard lock(state_->mutex);
  return state_->count_of(operation);
}

std::uint64_t FaultFileSystem::injected() const {
  const std::lock_guard lock(state_->mutex);
  return state_->injected;
}

std::optional<FileSystemFault> FaultFileSystem::State::next_fault(Operation operation) {
  std::unique_lock lock(mutex);
  std::optional<FileSystemFault> found;
  for (const FileSystemFault& fault : plan) {
    if (fault.operation && *fault.operation != operation) continue;
    if (fault.effect == FileSystemFault::Effect::buffered && !makes_a_file(operation)) continue;
    const std::uint64_t number = count_of(fault.operation);
    if (number < fault.occurrence || number - fault.occurrence >= fault.count) continue;
    if (fault.effect == FileSystemFault::Effect::kill) kill_process();
    found = fault;
    ++injected;
    break;
  }
  ++accepted[static_cast<std::size_t>(operation)];
  lock.unlock();
  if (!found || found->effect != FileSystemFault::Effect::delay) return found;
  std::this_thread::sleep_for(found->delay);
  return std::nullopt;
}

template <class Make>
Result<File> FaultFileSystem::State::make_file(FileSystem& owner, const std::optional<FileSystemFault>& fault,
                                               const char* operation, const std::filesystem::path& path,
                                               DirectIo direct, const Make& make) {
  const std::string why = fault ? "a fault of the plan" : "";
  if (fault && direct == DirectIo::required) return no_direct_io(operation, path, why);
  auto made = make(fault ? DirectIo::off : direct);
  if (!made) return made;
  File::Properties properties = made->properties();
  if (direct != DirectIo::off && fault) properties.direct_note = why;
  const std::lock_guard lock(mutex);
  files.insert_or_assign(properties.handle, std::move(*made));
  return File(owner, std::move(properties));
}

void FaultFileSystem::close(FileHandle handle) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->files.erase(handle);
}

Result<bool> FaultFileSystem::is_named(FileHandle file, const std::filesystem::path& path) {
  return state_->wrapped.is_named(file, path);
}

std::string FaultFileSystem::type_name(const std::filesystem::path& directory) {
  return state_->wrapped.type_name(directory);
}

Result<File> FaultFileSystem::create_scratch(const std::filesystem::path& directory, ByteCount size,
                                             DirectIo direct) {
  constexpr const char* operation = "FileSystem::create_scratch";
  const auto fault = state_->next_fault(Operation::create_scratch);
  if (fails(fault)) {
    return reserve_error(operation, directory, size, fault->error, state_->wrapped.free_space(directory));
  }
  return state_->make_file(*this, fault, operation, directory, direct, [&](DirectIo found) {
    return state_->wrapped.create_scratch(directory, size, found);
  });
}

Result<File> FaultFileSystem::create(const std::filesystem::path& path, ByteCount size, DirectIo direct) {
  constexpr const char* operation = "FileSystem::create";
  const auto fault = state_->next_fault(Operation::create);
  if (fails(fault) && fault->error == ENOSPC) {
    return reserve_error(operation, path, size, ENOSPC, state_->wrapped.free_space(path.parent_path()));
  }
  if (fails(fault)) return file_error(operation, path.string(), fault->error);
  return state_->make_file(*this, fault, operation, path, direct,
                           [&](DirectIo found) { return state_->wrapped.create(path, size, found); });
}

Result<File> FaultFileSystem::open(const std::filesystem::path& path, DirectIo direct) {
  constexpr const char* operation = "FileSystem::open";
  const auto fault = state_->next_fault(Operation::open);
  if (fails(fault)) return file_error(operation, path.string(), fault->error);
  return state_->make_file(*this, fault, operation, path, direct,
                           [&](DirectIo found) { return state_->wrapped.open(path, found); });
}

Result<void> FaultFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const auto fault = state_->next_fault(Operation::rename)) {
    return file_error("FileSystem::rename", renamed(from, to), fault->error);
  }
  return state_->wrapped.rename(from, to);
}

Result<void> FaultFileSystem::remove(const std::filesystem::path& path) {
  if (const auto fault = state_->next_fault(Operation::remove)) {
    return file_error("FileSystem::remove", path.string(), fault->error);
  }
  return state_->wrapped.remove(path);
}

Result<void> FaultFileSystem::create_directory(const std::filesystem::path& path) {
  if (const auto fault = state_->next_fault(Operation::create_directory)) {
    return file_error("FileSystem::create_directory", path.string(), fault->error);
  }
  return state_->wrapped.create_directory(path);
}

Result<void> FaultFileSystem::remove_directory(const std::filesystem::path& path) {
  if (const auto fault = state_->next_fault(Operation::remove_directory)) {
    return file_error("FileSystem::remove_directory", path.string(), fault->error);
  }
  return state_->wrapped.remove_directory(path);
}

Result<std::vector<std::string>> FaultFileSystem::list(const std::filesystem::path& directory) {
  if (const auto fault = state_->next_fault(Operation::list)) {
    return file_error("FileSystem::list", directory.string(), fault->error);
  }
  return state_->wrapped.list(directory);
}

Result<void> FaultFileSystem::sync_directory(const std::filesystem::path& directory) {
  if (const auto fault = state_->next_fault(Operation::sync_directory)) {
    return sync_error("FileSystem::sync_directory", directory.string(), fault->error);
  }
  return state_->wrapped.sync_directory(directory);
}

Result<DirectoryLock> FaultFileSystem::lock(const std::filesystem::path& directory) {
  const auto fault = state_->next_fault(Operation::lock);
  if (fault && fault->error == EWOULDBLOCK) return locked_error(directory, std::nullopt);
  if (fault) return file_error("FileSystem::lock", directory.string(), fault->error);
  return state_->wrapped.lock(directory);
}

Result<ByteCount> FaultFileSystem::free_space(const std::filesystem::path& directory) {
  if (const auto fault = state_->next_fault(Operation::free_space)) {
    return file_error("FileSystem::free_space", directory.string(), fault->error);
  }
  return state_->wrapped.free_space(directory);
}

Result<ByteCount> FaultFileSystem::size(const File::Properties& file) {
  if (const auto fault = state_->next_fault(Operation::size))
    return file_error("File::size", file.name, fault->error);
  return state_->wrapped_file(file).size();
}

Result<void> FaultFileSystem::extend(const File::Properties& file, ByteCount size) {
  if (const auto fault = state_->next_fault(Operation::extend)) {
    return extend_error(file.name, size, fault->error);
  }
  return state_->wrapped_file(file).extend(size);
}

Result<void> FaultFileSystem::clone(const File::Properties& source, FileOffset from,
                                    const File::Properties& file, FileOffset to, ByteCount length) {
  if (const auto fault = state_->next_fault(Operation::clone))
    return file_error("File::clone", file.name, fault->error);
  return state_->wrapped_file(file).clone(state_->wrapped_file(source), from, to, length);
}

Result<void> FaultFileSystem::read(const File::Properties& file, FileOffset offset, HostSpan into) {
  if (const auto fault = state_->next_fault(Operation::read)) {
    return transfer_error("File::read", file.name, offset, into.size(), fault->error);
  }
  return state_->wrapped_file(file).read(offset, into);
}

Result<void> FaultFileSystem::write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) {
  if (const auto fault = state_->next_fault(Operation::write)) {
    return transfer_error("File::write", file.name, offset, bytes.size(), fault->error);
  }
  return state_->wrapped_file(file).write(offset, bytes);
}

Result<void> FaultFileSystem::sync(const File::Properties& file) {
  if (const auto fault = state_->next_fault(Operation::sync))
    return sync_error("File::sync", file.name, fault->error);
  return state_->wrapped_file(file).sync();
}

}  // namespace penstock::tiers
