// A stream of a process with itself: what it writes is what it reads. MPI runs without mpirun.
#include "zero/comm/mpi/mpi_stream.hpp"

#include "kit/seeded_random.hpp"
#include "mpi_calls.hpp"
#include "zero/comm/mpi/mpi_session.hpp"

#include <gtest/gtest.h>
#include <mpi.h>
#include <chrono>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using namespace std::chrono_literals;
using penstock::test::SeededRandom;
using test::MpiCalls;

TimePoint soon() {
  return Clock::steady().now() + 10ms;
}
TimePoint late() {
  return Clock::steady().now() + 60s;
}

class MpiStreamTest : public ::testing::Test {
 protected:
  MpiStreamTest() : session_(MpiSession::start(60s).value()) {
    EXPECT_EQ(MPI_Comm_dup(MPI_COMM_SELF, &comm_), MPI_SUCCESS);
    EXPECT_EQ(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), MPI_SUCCESS);
  }
  ~MpiStreamTest() override {
    MpiCalls::instance() = {};
    EXPECT_EQ(MPI_Comm_free(&comm_), MPI_SUCCESS);
  }

  std::unique_ptr<MpiStream> open(std::size_t slot_bytes, std::size_t slots) {
    return MpiStream::open(comm_, 0, {.slot_bytes = slot_bytes, .slots = slots}).value();
  }
  static std::vector<std::byte> bytes(std::size_t count, std::uint64_t seed = 1) {
    std::vector<std::byte> made(count);
    SeededRandom random(seed);
    for (std::byte& byte : made) byte = std::byte(random.next());
    return made;
  }
  static ConstHostSpan view(const std::vector<std::byte>& bytes) {
    return ConstHostSpan(std::span<const std::byte>(bytes));
  }
  /// Reads until `wanted` bytes have come.
  static std::vector<std::byte> read(MpiStream& stream, std::size_t wanted) {
    std::vector<std::byte> all(wanted);
    for (std::size_t got = 0; got < wanted;) {
      got += stream.read(HostSpan(std::span(all).subspan(got))).value();
    }
    return all;
  }
  /// Sends past the stream.
  void send_raw(const std::vector<std::byte>& message) {
    MPI_Request request = MPI_REQUEST_NULL;
    EXPECT_EQ(MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, 0, 0, comm_, &request),
              MPI_SUCCESS);
    EXPECT_EQ(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_SUCCESS);
  }

  MpiSession session_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

TEST_F(MpiStreamTest, GivesTheBytesInOrderWhateverTheSlotsAre) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SeededRandom random(seed);
    const auto stream = open(1 + random.below(seed % 3 == 0 ? 9000 : 40), 1 + random.below(5));
    const std::vector<std::byte> sent = bytes(random.below(seed % 3 == 0 ? 60'000 : 700), seed);
    std::vector<std::byte> received(sent.size());
    std::size_t written = 0, read = 0;
    while (read < sent.size()) {
      const std::size_t length_max = 1 + random.below(3000);
      const auto part = [&](auto& all, std::size_t from) {
        return std::span(all).subspan(from, std::min(length_max, all.size() - from));
      };
      switch (random.below(3)) {
        case 0:
          written += stream->write(ConstHostSpan(std::span<const std::byte>(part(sent, written)))).value();
          break;
        case 1: read += stream->read(HostSpan(part(received, read))).value(); break;
        case 2: stream->send(); break;
      }
      ASSERT_LE(read, written) << "seed " << seed;
    }
    EXPECT_EQ(received, sent) << "seed " << seed;
    EXPECT_TRUE(stream->close(late())) << "seed " << seed;
  }
}

TEST_F(MpiStreamTest, TakesWhatFitsIntoItsSlots) {
  const auto stream = open(1'000'000, 2);
  const std::vector<std::byte> sent = bytes(5'000'000);

  const std::size_t first = stream->write(view(sent)).value();

  // Each slot of the sender, and each of the receiver, which MPI may have filled.
  EXPECT_GE(first, 2'000'000u);
  EXPECT_LE(first, 4'000'000u);
  std::size_t all = first;
  for (std::size_t last = 1; last > 0; all += last)
    last = stream->write(view(sent).subspan(ByteCount(all), ByteCount(sent.size() - all))).value();
  EXPECT_EQ(all, 4'000'000u);
  EXPECT_FALSE(stream->can_write());
  EXPECT_EQ(read(*stream, all), std::vector(sent.begin(), sent.begin() + 4'000'000));
  EXPECT_TRUE(stream->can_write());
  EXPECT_TRUE(stream->close(late()));
}

TEST_F(MpiStreamTest, SendsSmallWritesTogether) {
  const auto stream = open(4096, 2);
  const std::vector<std::byte> sent = bytes(2000);

  for (std::size_t at = 0; at < sent.size(); at += 100)
    EXPECT_EQ(stream->write(view(sent).subspan(ByteCount(at), 100_B)).value(), 100u);
  EXPECT_EQ(MpiCalls::instance().sends, 0);
  stream->send();
  stream->send();

  EXPECT_EQ(MpiCalls::instance().sends, 1);
  EXPECT_EQ(read(*stream, sent.size()), sent);
  EXPECT_FALSE(stream->can_read());
  EXPECT_TRUE(stream->close(late()));
}

TEST_F(MpiStreamTest, ReportsEveryCallThatFails) {
  const std::vector<std::byte> sent = bytes(10);
  std::vector<std::byte> room(10);
  const auto wrong = [&](const Result<std::size_t>& result, const std::string& call) {
    ASSERT_FALSE(result) << call;
    EXPECT_EQ(result.error().code(), ErrorCode::peer_failed);
    EXPECT_EQ(result.error().message(), call +
                                            " has failed: rank 0, got MPI_ERR_OTHER: known error not in list "
                                            "[MpiStream]\n  try     look at that rank's error");
  };
  for (const std::string call : {"MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Get_count"}) {
    const auto stream = open(10, 1);
    if (call != "MPI_Isend") {
      EXPECT_EQ(stream->write(view(sent)).value(), 10u);
    }
    MpiCalls::instance().failing = call;

    if (call == "MPI_Irecv") {
      EXPECT_EQ(stream->read(HostSpan(std::span(room))).value(), 10u) << "the bytes of before";
    }
    wrong(call == "MPI_Isend" ? stream->write(view(sent)) : stream->read(HostSpan(std::span(room))), call);

    MpiCalls::instance().failing.clear();
    EXPECT_TRUE(stream->can_read() && stream->can_write()) << "both return the error";
    wrong(stream->write(view(sent)), call);
    wrong(stream->read(HostSpan(std::span(room))), call);
    EXPECT_TRUE(stream->close(late()));
  }
  MpiCalls::instance().failing = "MPI_Irecv";
  EXPECT_FALSE(MpiStream::open(comm_, 0, {.slot_bytes = 10, .slots = 1}));
}

TEST_F(MpiStreamTest, GivesEverythingThatAPeerWroteBeforeItLeft) {
  const auto stream = open(100, 2);
  const std::vector<std::byte> sent = bytes(150);
  EXPECT_EQ(stream->write(view(sent)).value(), 150u);
  stream->send();
  EXPECT_EQ(read(*stream, 150), sent);
  send_raw({});
  std::vector<std::byte> room(1);

  const auto end = stream->read(HostSpan(std::span(room)));
  const auto written = stream->write(view(sent));

  ASSERT_FALSE(end || written);
  EXPECT_EQ(end.error().code(), ErrorCode::peer_failed);
  EXPECT_EQ(end.error().message(),
            "the peer has left: rank 0 [MpiStream]\n  try     look at that rank's error");
  EXPECT_EQ(written.error().message(), end.error().message());
  const int before = MpiCalls::instance().sends;
  EXPECT_TRUE(stream->close(late()));
  EXPECT_EQ(MpiCalls::instance().sends, before) << "nobody is there to be told";
}

TEST_F(MpiStreamTest, ClosesWithoutAPeerThatReceives) {
  const auto stream = open(1'000'000, 1);
  const std::vector<std::byte> sent = bytes(2'000'000);
  std::size_t written = stream->write(view(sent)).value();
  while (written < sent.size() && stream->can_write())
    written +=
        stream->write(view(sent).subspan(ByteCount(written), ByteCount(sent.size() - written))).value();
  ASSERT_EQ(written, sent.size()) << "one message has arrived, and no slot is left for the other";

  EXPECT_FALSE(stream->close(soon()));
}

}  // namespace
}  // namespace penstock::zero
