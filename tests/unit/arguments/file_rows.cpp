#include "unit/arguments/bad_arguments.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/file_counters.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <filesystem>
#include <memory>
#include <utility>

namespace penstock::test {
namespace {

using namespace tiers;
using std::filesystem::path;

/// A file system with a directory, and a file of 4 KiB in it.
struct Bench {
  enum class Kind : std::uint8_t { real, simulated, faulty };
  explicit Bench(Kind kind) {
    if (kind == Kind::simulated) {
      disk.make_directory(directory);
      files = &disk;
    }
    if (kind == Kind::faulty) files = &faulty;
    file = files->create(directory / "file", 4_KiB, DirectIo::off).value();
  }
  /// That the file system and its file still work.
  [[nodiscard]] std::string works() {
    std::array<std::byte, 16> bytes{};
    const bool written = file.write(FileOffset(0), HostSpan(std::span(bytes))) &&
                         file.read(FileOffset(0), HostSpan(std::span(bytes))) && file.sync();
    return expect(written && files->list(directory).value().size() == 1,
                  "the file system does not work any more");
  }

  ScratchDirectory scratch;
  path directory = scratch.path();
  SimDisk disk{{.capacity = 1_MiB}};
  FaultFileSystem faulty{real_file_system(), {}};
  FileSystem* files = &real_file_system();
  File file;
};

constexpr std::array kinds = {std::pair{Bench::Kind::real, " (real)"},
                              std::pair{Bench::Kind::simulated, " (simulated)"},
                              std::pair{Bench::Kind::faulty, " (faulty)"}};

std::vector<path> wrong_directories() {
  return {"",      "/penstock-none",       "/penstock-none/deep",  "/dev/null", "/etc/passwd",
          "/proc", std::string(5000, 'x'), std::string("a\0b", 3), "a\nb"};
}
/// A name in the directory; the empty one for the empty directory, which would be the current one.
path below(const path& directory) {
  return directory.empty() ? directory : directory / "new";
}
std::string named(const path& name) {
  return name.empty() ? "empty" : name.string().size() > 40 ? "very long" : name.string();
}

void add_path_rows(BadArguments& bad) {
  for (const auto& [kind, of] : kinds) {
    for (const path& wrong : wrong_directories()) {
      const auto with = [&bad, kind = kind, of = of, wrong](const char* function, const char* argument,
                                                            auto call) {
        bad(function, argument, named(wrong) + of, [=] {
          Bench b(kind);
          return all({call(b), b.works()});
        });
      };
      if (kind != Bench::Kind::simulated) {  // a scratch file of a SimDisk needs no directory
        with("FileSystem::create_scratch", "directory",
             [=](Bench& b) { return fails(b.files->create_scratch(wrong, 4_KiB, DirectIo::off)); });
      }
      with("FileSystem::create", "path",
           [=](Bench& b) { return fails(b.files->create(below(wrong), 4_KiB, DirectIo::off)); });
      with("FileSystem::open", "path",
           [=](Bench& b) { return fails(b.files->open(below(wrong), DirectIo::off)); });
      with("FileSystem::open_to_read", "path",
           [=](Bench& b) { return fails(b.files->open_to_read(below(wrong), DirectIo::off)); });
      with("FileSystem::rename", "from",
           [=](Bench& b) { return fails(b.files->rename(below(wrong), b.directory / "other")); });
      with("FileSystem::rename", "to",
           [=](Bench& b) { return fails(b.files->rename(b.directory / "file", below(wrong))); });
      with("FileSystem::remove", "path", [=](Bench& b) { return fails(b.files->remove(below(wrong))); });
      with("FileSystem::lock", "directory", [=](Bench& b) { return fails(b.files->lock(wrong)); });
      with("FileSystem::type_name", "directory", [=](Bench& b) {
        (void)b.files->type_name(wrong);
        return harmless();
      });
      with("FileSystem::free_space", "directory", [=](Bench& b) {
        (void)b.files->free_space(wrong);
        return harmless();
      });
      with("FileSystem::is_named", "path", [=](Bench& b) {
        const auto named = b.files->is_named(b.file.handle(), wrong);
        return expect(!named || !*named, "the file has this name");
      });
      if (wrong == "/proc") continue;  // a directory
      with("FileSystem::list", "directory", [=](Bench& b) { return fails(b.files->list(wrong)); });
      with("FileSystem::create_directory", "path",
           [=](Bench& b) { return fails(b.files->create_directory(below(wrong))); });
      with("FileSystem::remove_directory", "path",
           [=](Bench& b) { return fails(b.files->remove_directory(below(wrong))); });
      with("FileSystem::sync_directory", "directory",
           [=](Bench& b) { return fails(b.files->sync_directory(wrong)); });
    }
  }
}

void add_file_object_rows(BadArguments& bad) {
  for (const auto& [kind, of] : kinds) {
    const auto with = [&bad, kind = kind, of = of](const char* function, const char* argument,
                                                   const char* value, auto call) {
      bad(function, argument, std::string(value) + of, [=] {
        Bench b(kind);
        return all({call(b), b.works()});
      });
    };
    with("FileSystem::create", "path", "one that exists", [](Bench& b) {
      return refused(b.files->create(b.directory / "file", 4_KiB, DirectIo::off), "",
                     ErrorCode::already_exists);
    });
    with("FileSystem::open", "path", "a directory",
         [](Bench& b) { return refused(b.files->open(b.directory, DirectIo::off), ""); });
    with("FileSystem::open_to_read", "path", "a directory",
         [](Bench& b) { return refused(b.files->open_to_read(b.directory, DirectIo::off), ""); });
    with("FileSystem::remove", "path", "a directory",
         [](Bench& b) { return fails(b.files->remove(b.directory)); });
    for (const std::uint64_t size : {std::uint64_t{1} << 50, std::uint64_t{1} << 63, most}) {
      with("FileSystem::create_scratch", "size", "absurd", [size](Bench& b) {
        return fails(b.files->create_scratch(b.directory, ByteCount(size), DirectIo::off));
      });
      with("FileSystem::create", "size", "absurd", [size](Bench& b) {
        return fails(b.files->create(b.directory / "huge", ByteCount(size), DirectIo::off));
      });
    }
    for (const std::uint64_t size : {std::uint64_t{1} << 63, most}) {
      with("File::extend", "size", "absurd",
           [size](Bench& b) { return fails(b.file.extend(ByteCount(size))); });
    }
    for (const std::uint64_t wrong : {std::uint64_t{1}, std::uint64_t{1} << 62, most}) {
      with("File::clone", "from", "misaligned or absurd", [wrong](Bench& b) {
        return fails(b.file.clone(b.file, FileOffset(wrong), FileOffset(0), 4_KiB));
      });
      with("File::clone", "to", "misaligned or absurd", [wrong](Bench& b) {
        return fails(b.file.clone(b.file, FileOffset(0), FileOffset(wrong), 4_KiB));
      });
      with("File::clone", "length", "misaligned or absurd", [wrong](Bench& b) {
        return fails(b.file.clone(b.file, FileOffset(0), FileOffset(0), ByteCount(wrong)));
      });
    }
    for (const std::uint64_t offset :
         {std::uint64_t{4096}, std::uint64_t{1} << 62, std::uint64_t{1} << 63, most}) {
      with("File::read", "offset", "beyond the end", [offset](Bench& b) {
        std::array<std::byte, 16> bytes{};
        return fails(b.file.read(FileOffset(offset), HostSpan(std::span(bytes))));
      });
    }
    for (const std::uint64_t offset : {std::uint64_t{1} << 63, most - 15, most}) {
      with("File::write", "offset", "beyond every file", [offset](Bench& b) {
        std::array<std::byte, 16> bytes{};
        return fails(b.file.write(FileOffset(offset), HostSpan(std::span(bytes))));
      });
    }
    with("File::read", "into", "null",
         [](Bench& b) { return fails(b.file.read(FileOffset(0), HostSpan(nullptr, 16_B))); });
    with("File::write", "bytes", "null",
         [](Bench& b) { return fails(b.file.write(FileOffset(0), ConstHostSpan(nullptr, 16_B))); });
    with("File::read", "into", "empty",
         [](Bench& b) { return expect(b.file.read(FileOffset(0), {}).has_value(), "refused"); });
    with("File::File", "properties.handle", "of no open file", [](Bench& b) {
      File file(*b.files, {.handle = FileHandle(987654), .name = "none"});
      std::array<std::byte, 16> bytes{};
      const HostSpan span{std::span(bytes)};
      return all({fails(file.size()), fails(file.extend(1_MiB)), fails(file.read(FileOffset(0), span)),
                  fails(file.write(FileOffset(0), span)), fails(file.sync())});
    });
  }
  for (const bool moved : {false, true}) {
    bad("File::File", "the file", moved ? "moved from" : "a default one", [moved] {
      Bench b(Bench::Kind::real);
      File file = moved ? b.files->open(b.directory / "file", DirectIo::off).value() : File();
      const File kept = std::move(file);
      return all({refused(file.size(), "file"), refused(file.extend(1_B), "file"),
                  refused(file.read(FileOffset(0), {}), "file"),
                  refused(file.write(FileOffset(0), {}), "file"), refused(file.sync(), "file"), b.works()});
    });
  }
  bad("DirectoryLock::DirectoryLock", "lock_file", "a default one", [] {
    const DirectoryLock lock{File()};
    return harmless();
  });
}

void add_fault_rows(BadArguments& bad) {
  using Operation = FaultFileSystem::Operation;
  bad("FaultFileSystem::FaultFileSystem", "plan", "of an unknown operation and effect", [] {
    FaultFileSystem files(real_file_system(),
                          {{.operation = unknown<Operation>, .count = most},
                           {.occurrence = most, .effect = unknown<FileSystemFault::Effect>}});
    return expect(files.list("/proc").has_value(), "a fault that no call meets was injected");
  });
  bad("FaultFileSystem::add", "fault", "of an unknown operation and effect", [] {
    FaultFileSystem files(real_file_system(), {});
    files.add({.operation = unknown<Operation>, .count = most});
    files.add({.occurrence = most, .effect = unknown<FileSystemFault::Effect>});
    files.add({.occurrence = most, .effect = FileSystemFault::Effect::delay, .delay = TimePoint::min()});
    return expect(files.list("/proc").has_value(), "a fault that no call meets was injected");
  });
  bad("FaultFileSystem::accepted", "operation", "unknown", [] {
    return expect(FaultFileSystem(real_file_system(), {}).accepted(unknown<Operation>) == 0, "not 0");
  });
  bad("FileSystemFault::fail", "operation", "unknown", [] {
    FaultFileSystem files(real_file_system(), {FileSystemFault::fail(unknown<Operation>, 0, -1, most)});
    return expect(files.list("/proc").has_value(), "a fault that no call meets was injected");
  });
}

void add_histogram_rows(BadArguments& bad) {
  for (const TimePoint duration : {TimePoint::min(), TimePoint(-1), TimePoint(0), TimePoint::max()}) {
    bad("LatencyHistogram::record", "duration", std::to_string(duration.count()), [=] {
      LatencyHistogram histogram;
      histogram.record(duration);
      return expect(histogram.count() == 1, "not counted");
    });
  }
  for (const double fraction : {-1.0, 2.0, static_cast<double>(nan), static_cast<double>(infinity)}) {
    bad("LatencyHistogram::percentile", "fraction", std::to_string(fraction), [=] {
      LatencyHistogram histogram;
      histogram.record(std::chrono::milliseconds(1));
      return expect(histogram.percentile(fraction) > TimePoint::zero(), "no bucket");
    });
  }
}

}  // namespace

void add_file_rows(BadArguments& bad) {
  add_path_rows(bad);
  add_file_object_rows(bad);
  add_fault_rows(bad);
  add_histogram_rows(bad);
}

}  // namespace penstock::test
