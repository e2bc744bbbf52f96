#include "unit/arguments/bad_arguments.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/file_transfers.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

namespace penstock::test {
namespace {

using namespace tiers;
using std::filesystem::path;

/// Transfers, and a file of 16 bytes.
struct Bench {
  Bench() { std::ofstream(file) << "sixteen bytes..."; }
  /// That nothing was started, and that the next transfer succeeds.
  [[nodiscard]] std::string works() {
    const bool is_idle = transfers->wait().value() == 0;
    const bool moved =
        transfers->start_read(file, FileOffset(0), HostSpan(std::span(bytes))) && transfers->wait();
    return expect(is_idle && moved, "the transfers do not work any more");
  }

  ScratchDirectory scratch;
  path file = scratch.path() / "file";
  std::array<std::byte, 16> bytes{};
  std::unique_ptr<FileTransfers> transfers = FileTransfers::create({}).value();
};

}  // namespace

void add_transfer_rows(BadArguments& bad) {
  const auto option = [&bad](const char* name, const std::string& value, FileTransfers::Options options) {
    bad("FileTransfers::create", "options", std::string(name) + " " + value,
        [=] { return refused(FileTransfers::create(options), name); });
  };
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095}, most})
    option("request_max", std::to_string(size), {.request_max = ByteCount(size)});
  for (const std::uint32_t depth : {0u, 1u << 20, ~0u})
    option("depth", std::to_string(depth), {.depth = depth});
  for (const std::uint32_t threads : {0u, 1u << 20, ~0u})
    option("threads", std::to_string(threads), {.threads = threads});
  for (const TimePoint deadline : {TimePoint::min(), TimePoint(-1), TimePoint(0)})
    option("deadline", std::to_string(deadline.count()), {.deadline = deadline});
  option("files", "null", {.files = nullptr});

  for (const bool reads : {true, false}) {
    const auto with = [&bad, reads](const char* argument, const std::string& value, auto call) {
      bad(reads ? "FileTransfers::start_read" : "FileTransfers::start_write", argument, value, [=] {
        Bench b;
        return all({fails(call(b)), b.works()});
      });
    };
    const auto start = [reads](Bench& b, const path& file, FileOffset offset, HostSpan bytes) {
      return reads ? b.transfers->start_read(file, offset, bytes)
                   : b.transfers->start_write(file, offset, bytes);
    };
    bad(reads ? "FileTransfers::start_read" : "FileTransfers::start_write", "file", "empty", [=] {
      Bench b;
      return all({refused(start(b, path(), FileOffset(0), HostSpan(std::span(b.bytes))), "it is empty: file"),
                  b.works()});
    });
    for (const path& wrong : {path("/penstock-none/file"), path("/proc"), path(std::string(5000, 'x')),
                              path(std::string("a\0b", 3))}) {
      with("file", wrong.string().substr(0, 20),
           [=](Bench& b) { return start(b, wrong, FileOffset(0), HostSpan(std::span(b.bytes))); });
    }
    for (const std::uint64_t offset : {std::uint64_t{1} << 63, most}) {
      with("offset", std::to_string(offset),
           [=](Bench& b) { return start(b, b.file, FileOffset(offset), HostSpan(std::span(b.bytes))); });
    }
    with("the buffer", "null",
         [=](Bench& b) { return start(b, b.file, FileOffset(0), HostSpan(nullptr, 16_B)); });
    with("the buffer", "of an absurd size", [=](Bench& b) {
      return start(b, b.file, FileOffset(0), HostSpan(b.bytes.data(), ByteCount(most)));
    });
  }
  bad("FileTransfers::start_read", "offset", "beyond the end", [] {
    Bench b;
    return all({refused(b.transfers->start_read(b.file, FileOffset(1), HostSpan(std::span(b.bytes))), "file",
                        ErrorCode::truncated),
                b.works()});
  });
}

}  // namespace penstock::test
