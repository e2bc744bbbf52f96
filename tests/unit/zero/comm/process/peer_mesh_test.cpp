// Ranks that exchange bytes with all their peers at once, in an order and in pieces that a seed chooses.
#include "zero/comm/process/peer_mesh.hpp"

#include "kit/memory_pipes.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

/// Ranks with a flat each, of one slot a rank.
class Job {
 public:
  Job(std::uint32_t ranks, std::size_t slot_bytes, std::uint64_t seed)
      : random(seed), size_(ranks), slot_(slot_bytes), pipes_(ranks, 1000, seed) {
    for (std::uint32_t r = 0; r < ranks; ++r)
      meshes.push_back(std::make_unique<PeerMesh>(r, ranks, pipes_.of(r)));
    flats.resize(ranks);
  }
  /// The byte of `offset` in slot `slot` of rank `owner`.
  static std::byte value(std::uint32_t owner, std::uint32_t slot, std::size_t offset,
                         std::uint64_t generation) {
    return std::byte((owner * 59 + slot * 17 + offset * 7 + generation * 101) & 0xff);
  }
  void fill(std::uint64_t generation) {
    for (std::uint32_t r = 0; r < size_; ++r) {
      flats[r].resize(slot_ * size_);
      for (std::size_t i = 0; i < flats[r].size(); ++i)
        flats[r][i] =
            value(r, static_cast<std::uint32_t>(i / std::max<std::size_t>(slot_, 1)), i, generation);
    }
  }
  Result<void> begin(std::uint32_t r, Transfer::Kind kind, std::uint64_t step = 0) {
    std::vector<LinkOperation> operations(size_);
    for (std::uint32_t peer = 0; peer < size_; ++peer) {
      operations[peer] = {.kind = kind,
                          .signature = {.step = step},
                          .dtype = DType::bf16,
                          .pieces = {{.send = slot(r, kind == Transfer::Kind::all_gather ? r : peer),
                                      .receive = slot(r, peer)}}};
    }
    return meshes[r]->begin(operations);
  }
  HostSpan slot(std::uint32_t r, std::uint32_t index) {
    return HostSpan(std::span(flats[r]).subspan(slot_ * index, slot_));
  }
  void run(std::uint64_t turns) {
    for (; turns > 0; --turns) (void)run_one();
  }
  Result<bool> run_one() {
    const std::size_t r = random.below(size_);
    return meshes[r] ? meshes[r]->advance() : Result<bool>(false);
  }
  /// Until every rank is done.
  void finish() {
    while (!std::all_of(meshes.begin(), meshes.end(),
                        [](const auto& mesh) { return mesh->is_done() && !mesh->is_interrupted(); })) {
      const auto moved = run_one();
      ASSERT_TRUE(moved) << moved.error().message();
    }
  }
  void expect_moved(Transfer::Kind kind, std::uint64_t generation) const {
    for (std::uint32_t r = 0; r < size_; ++r) {
      for (std::uint32_t peer = 0; peer < size_; ++peer) {
        const std::uint32_t from = kind == Transfer::Kind::all_gather ? peer : r;
        for (std::size_t i = 0; i < slot_; ++i)
          ASSERT_EQ(flats[r][slot_ * peer + i], value(peer, from, slot_ * from + i, generation))
              << "rank " << r << ", slot " << peer << ", byte " << i;
      }
    }
  }

  penstock::test::SeededRandom random;

 private:
  const std::uint32_t size_;
  const std::size_t slot_;
  penstock::test::MemoryPipes pipes_;

 public:
  std::vector<std::unique_ptr<PeerMesh>> meshes;
  std::vector<std::vector<std::byte>> flats;
};

constexpr auto kinds = {Transfer::Kind::all_gather, Transfer::Kind::all_to_all};

TEST(PeerMesh, GathersAndScattersInPlace) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto ranks = static_cast<std::uint32_t>(1 + seed % 5);
    Job job(ranks, std::vector<std::size_t>{0, 1, 63, 700, 3000}[seed % 7 % 5], seed);
    for (std::uint64_t generation = 0; generation < 4; ++generation) {
      for (const Transfer::Kind kind : kinds) {
        job.fill(generation);
        for (std::uint32_t r = 0; r < ranks; ++r) {
          ASSERT_TRUE(job.begin(r, kind));
          job.run(job.random.below(20));
        }
        job.finish();
        job.expect_moved(kind, generation);
      }
    }
  }
}

TEST(PeerMesh, GoesOnAfterAnInterruption) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    constexpr std::uint32_t ranks = 4;
    Job job(ranks, 2000, seed);
    for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
      job.fill(epoch);
      for (std::uint32_t r = 0; r < ranks; ++r) {
        if (job.random.below(4) > 0) {
          ASSERT_TRUE(job.begin(r, Transfer::Kind::all_to_all));
        }
        job.run(job.random.below(30));
      }
      for (std::uint32_t r = 0; r < ranks; ++r) {
        job.meshes[r]->interrupt(epoch);
        EXPECT_TRUE(job.meshes[r]->is_interrupted());
        job.run(job.random.below(30));
      }
      job.finish();
      job.fill(epoch + 10);
      for (std::uint32_t r = 0; r < ranks; ++r) ASSERT_TRUE(job.begin(r, Transfer::Kind::all_gather));
      job.finish();
      job.expect_moved(Transfer::Kind::all_gather, epoch + 10);
    }
  }
}

TEST(PeerMesh, IsNotDoneWithACollectiveThatBeginsAfterAnError) {
  penstock::test::MemoryPipes pipes(2, 1000, 1);
  auto garbage = pipes.of(1);
  PeerMesh mesh(0, 2, pipes.of(0));
  const std::vector<std::byte> no_chunk(PeerLink::header_bytes, std::byte{0xff});
  for (std::size_t sent = 0; sent < no_chunk.size();)
    sent += garbage->write(0, ConstHostSpan(std::span(no_chunk).subspan(sent))).value();
  while (mesh.advance()) continue;

  std::vector<std::byte> flat(128);
  const std::vector<LinkOperation> operations(
      2, {.kind = Transfer::Kind::all_gather,
          .dtype = DType::bf16,
          .pieces = {{HostSpan(std::span(flat).first(64)), HostSpan(std::span(flat).last(64))}}});
  EXPECT_FALSE(mesh.begin(operations));
  EXPECT_FALSE(mesh.is_done());
}

TEST(PeerMesh, NamesThePeersThatAreMissing) {
  using Ranks = std::vector<std::uint32_t>;
  Job job(3, 5000, 1);
  job.fill(0);
  EXPECT_EQ(job.meshes[0]->missing(), Ranks());
  ASSERT_TRUE(job.begin(0, Transfer::Kind::all_gather));
  EXPECT_EQ(job.meshes[0]->missing(), (Ranks{1, 2}));
  ASSERT_TRUE(job.begin(1, Transfer::Kind::all_gather));
  job.run(100);
  EXPECT_EQ(job.meshes[0]->missing(), Ranks{2});
  EXPECT_EQ(job.meshes[2]->missing(), Ranks());
  ASSERT_TRUE(job.begin(2, Transfer::Kind::all_gather));
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_TRUE(job.meshes[2]->advance());
    ASSERT_TRUE(job.meshes[0]->advance());
  }
  EXPECT_EQ(job.meshes[0]->missing(), Ranks{2});  // which has begun, and has more to send than the pipe holds
  job.finish();
  job.meshes[0]->interrupt(1);
  job.meshes[1]->interrupt(1);
  job.run(100);
  EXPECT_EQ(job.meshes[0]->missing(), Ranks{2});
}

TEST(PeerMesh, FailsWhereCollectivesDiffer) {
  Job job(3, 100, 1);
  job.fill(0);
  for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(job.begin(r, Transfer::Kind::all_gather, r == 2 ? 7 : 6));
  std::size_t r = 0;
  Result<bool> moved = false;
  for (; moved; r = (r + 1) % 3) moved = job.meshes[r]->advance();
  r = (r + 2) % 3;  // the rank that has noticed it first, whose peers may wait for it
  EXPECT_EQ(moved.error().code(), ErrorCode::invalid_argument);
  const std::string message = moved.error().message();
  EXPECT_TRUE(message.starts_with("ranks 2 and ") || message.find(" and 2 call different") < 10) << message;
  EXPECT_EQ(job.meshes[r]->advance().error().message(), message);
  EXPECT_EQ(job.meshes[r]->begin({}).error().message(), message);
}

TEST(PeerMesh, NeedsAPeerOnlyUntilItsPartIsDone) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Job job(3, 800, seed);
    job.fill(0);
    for (std::uint32_t r = 0; r < 3; ++r) ASSERT_TRUE(job.begin(r, Transfer::Kind::all_gather));
    while (!job.meshes[2]->is_done()) ASSERT_TRUE(job.run_one());
    job.meshes[2].reset();  // its last bytes are on their way
    while (!job.meshes[0]->is_done() || !job.meshes[1]->is_done()) {
      const auto moved = job.run_one();
      ASSERT_TRUE(moved) << moved.error().message();
    }
    job.expect_moved(Transfer::Kind::all_gather, 0);

    ASSERT_TRUE(job.begin(0, Transfer::Kind::all_gather));
    Result<bool> moved = false;
    for (int turn = 0; turn < 1000 && moved; ++turn) moved = job.meshes[0]->advance();
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), ErrorCode::peer_failed);
    EXPECT_NE(moved.error().message().find("rank 2"), std::string::npos) << moved.error().message();
  }
}

TEST(PeerMesh, FailsWhereAPeerEndsInACollectiveOrAnInterruption) {
  for (const bool interrupted : {false, true}) {
    Job job(2, 5000, 1);
    job.fill(0);
    for (std::uint32_t r = 0; r < 2; ++r) {
      ASSERT_TRUE(job.begin(r, Transfer::Kind::all_gather));
      if (interrupted && r == 0) job.meshes[r]->interrupt(1);
    }
    job.run(5);
    job.meshes[1].reset();
    Result<bool> moved = false;
    for (int turn = 0; turn < 1000 && moved; ++turn) moved = job.meshes[0]->advance();
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), ErrorCode::peer_failed);
  }
}

}  // namespace
}  // namespace penstock::zero::test
