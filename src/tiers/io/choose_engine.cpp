#include "tiers/io/choose_engine.hpp"

#include "base/notes.hpp"
#include "tiers/io/aio_engine.hpp"
#include "tiers/io/engine_errors.hpp"
#include "tiers/io/interrupted.hpp"
#include "tiers/io/running_time.hpp"
#include "tiers/io/thread_pool_engine.hpp"
#include "tiers/io/uring_engine.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>

namespace penstock::tiers {

namespace {

Result<std::unique_ptr<IoEngine>> make(EngineChoice choice, std::uint32_t depth, EngineFiles files) {
  switch (choice) {
    case EngineChoice::io_uring:
      return create_uring_engine({.depth = depth, .register_files = files == EngineFiles::one});
    case EngineChoice::libaio: return create_aio_engine({.depth = depth});
    case EngineChoice::threads:
    case EngineChoice::automatic: break;
  }
  return create_thread_pool_engine({.depth = depth});
}

// Deadline of the test, in running time: a drive that takes longer is not usable.
constexpr TimePoint try_out_deadline = std::chrono::seconds(30);

/// The result of one read: bytes or a negative errno. -ETIME if it is still in flight at its deadline.
std::int64_t read_once(IoEngine& engine, const IoRequest& read) {
  std::array<IoCompletion, 1> completion{};
  if (engine.submit({&read, 1}) != 1) return -EAGAIN;
  RunningTime running(Clock::steady(), running_time_step(try_out_deadline));
  const TimePoint deadline = running.elapsed() + try_out_deadline;
  while (engine.reap(completion, running.next_update(deadline)) == 0) {
    (void)running.update();
    if (running.elapsed() >= deadline || !engine.failure().empty()) return -ETIME;
  }
  return completion[0].result;
}

/// Why the first block could not be read; `result` is that of read_once().
Error read_failed(IoEngine& engine, std::int64_t result) {
  constexpr const char* operation = "choose_engine";
  if (result != -ETIME) {
    return Error::unsupported(operation).reason(completion_text(engine.name(), static_cast<int>(-result)));
  }
  const std::string failure = engine.failure();
  return Error(ErrorCode::deadline_exceeded, operation)
      .reason(failure.empty() ? "a read did not complete in time" : failure)
      .advice("check the drive and the kernel log");
}

Error file_too_short(const File::Properties& file, std::uint64_t wanted, std::int64_t got) {
  return Error(ErrorCode::truncated, "choose_engine")
      .object(file.name)
      .reason("the file ends within its first block")
      .wanted(ByteCount(wanted))
      .got(ByteCount(static_cast<std::uint64_t>(got)))
      .advice("look who has shortened the file, and write it again");
}

/// Reads the file's first block, so that a refusal by a filter, a driver or a file system is found before the run.
Result<void> try_out(EngineChoice choice, const File::Properties& file) {
  const std::uint64_t size = file.alignment.bytes();
  std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(size, size), &std::free);
  if (!block) return Error::from_errno("choose_engine", ENOMEM).wanted(ByteCount(size));
  // With a separate instance: a ring belongs to the first thread that submits to it.
  PENSTOCK_TRY_ASSIGN(auto engine, make(choice, 1, EngineFiles::one));
  engine->attach(file.handle, {});
  const IoRequest read{.operation = IoOperation::read,
                       .file = file.handle,
                       .offset = FileOffset(0),
                       .buffer = HostSpan(static_cast<std::byte*>(block.get()), ByteCount(size))};
  const std::int64_t result = repeat_refused([&] { return read_once(*engine, read); });
  if (result == static_cast<std::int64_t>(size)) return ok();
  Error error =
      result >= 0
          ? file_too_short(file, size, result)
          : read_failed(*engine, result).object(std::string(engine->name()) + " reading " + file.name);
  if (!engine->close(Clock::steady().now())) (void)block.release();  // the kernel may still write to it
  return error;
}

}  // namespace

std::string_view to_string(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::automatic: return "automatic";
    case EngineChoice::io_uring: return "io_uring";
    case EngineChoice::libaio: return "libaio";
    case EngineChoice::threads: return "threads";
  }
  return "unknown";
}

Result<ChosenEngine> choose_engine(EngineChoice choice, std::uint32_t depth, const File::Properties& file,
                                   EngineFiles files) {
  ChosenEngine chosen;
  for (const auto candidate : {EngineChoice::io_uring, EngineChoice::libaio, EngineChoice::threads}) {
    if (choice != EngineChoice::automatic && choice != candidate) continue;
    if (choice == EngineChoice::automatic && candidate == EngineChoice::libaio && !file.direct) continue;
    auto works = try_out(candidate, file);
    auto engine = works ? make(candidate, depth, files) : Result<std::unique_ptr<IoEngine>>(works.error());
    if (engine) {
      chosen.engine = std::move(*engine);
      if (!chosen.reason.empty()) {
        chosen.reason = std::string(to_string(candidate)) + ", since " + chosen.reason;
      }
      return chosen;
    }
    const bool is_last = choice == candidate || candidate == EngineChoice::threads;
    if (is_last || engine.error().code() == ErrorCode::truncated) return engine.error();
    append_note(chosen.reason, engine.error().message());
  }
  return Error::invalid_argument("choose_engine").object("choice").got(std::uint32_t(choice));
}

}  // namespace penstock::tiers
