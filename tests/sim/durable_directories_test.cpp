// Which directories a durable run takes, and what it leaves in them.
#include "kit/scratch_directory.hpp"
#include "sim/durable_files.hpp"
#include "sim/one_rank.hpp"
#include "sim/saving_runs.hpp"

#include <penstock/tiers/io/file_system.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
namespace fs = std::filesystem;

void expect_refused(const Config& config, ErrorCode code, const std::vector<std::string>& texts) {
  const auto refused = OneRank::create(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(to_string(refused.error().code()), to_string(code)) << refused.error().message();
  for (const std::string& text : texts)
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << text << "\n"
                                                                       << refused.error().message();
}

TEST(DurableDirectories, MayBeNamedInAnyOrder) {
  const ScratchDirectory scratch;
  const fs::path a = scratch.path() / "a", b = scratch.path() / "b", c = scratch.path() / "c";
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    for (const fs::path& one : {a, b, c}) fs::remove_all(one);
    const std::string expected = go_on(config_of({a, b, c}, to));
    for (const auto& directories : {std::vector{c, b, a}, {b, a, c}, {a, c, b}}) {
      const OneRank run = OneRank::create(config_of(directories, to)).value();
      const auto resumed = run.engine().resume().value();
      ASSERT_TRUE(resumed) << directories.front();
      EXPECT_EQ(run.engine().digest().value(), expected);
      (void)run.engine().commit().value();
    }
  }
}

TEST(DurableDirectories, AreOfOneRun) {
  const ScratchDirectory scratch;
  const fs::path a = scratch.path() / "a", b = scratch.path() / "b";
  (void)go_on(config_of({a}));
  (void)go_on(config_of({b}));
  const auto before = files_below(scratch.path());

  expect_refused(config_of({a, b}), ErrorCode::invalid_argument,
                 {b.string(), "a run of its own", a.string()});

  EXPECT_EQ(files_below(scratch.path()), before);
}

TEST(DurableDirectories, MayHaveOtherFilesAndNames) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "run"});
  const std::string expected = go_on(config);
  const fs::path directory = scratch.path() / "run";
  fs::create_directory(directory / "rank0");
  fs::create_directory(directory / "rank5");
  fs::create_directory(directory / "rank00000");
  std::ofstream(directory / "rank0007") << "a file";

  const OneRank run = OneRank::create(config).value();

  EXPECT_TRUE(run.engine().resume().value());
  EXPECT_EQ(run.engine().digest().value(), expected);
}

TEST(DurableDirectories, NameALongFileThatIsNoManifest) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "run"});
  (void)go_on(config);
  const fs::path file = scratch.path() / "run" / "rank0000" / "engine0-000000000002.manifest";
  const std::string manifest = text_of(scratch.path() / "run/rank0000/engine0-000000000001.manifest");
  for (const std::string& contents : {std::string("x"), manifest}) {
    std::ofstream(file) << contents;
    fs::resize_file(file, std::uintmax_t{1} << 43);

    const OneRank run = OneRank::create(config).value();

    const auto resumed = run.engine().resume().value();
    ASSERT_EQ(resumed->notes.size(), 1u);
    EXPECT_NE(resumed->notes[0].find(file.string()), std::string::npos) << resumed->notes[0];
  }
}

TEST(DurableDirectories, LoseFilesOfTensorsThatAreInAnotherTierNow) {
  for (const auto& [from, to] :
       {std::pair{OffloadDevice::nvme, OffloadDevice::cpu}, {OffloadDevice::cpu, OffloadDevice::nvme}}) {
    const ScratchDirectory scratch;
    const std::vector<fs::path> directories = {scratch.path() / "a", scratch.path() / "b"};
    (void)go_on(config_of(directories, from));
    std::ofstream(scratch.path() / "a/rank0000/copies1-0") << "of another engine";
    const std::string digest = go_on(config_of(directories, to));

    const bool on_disk = to == OffloadDevice::nvme;
    for (const char* name : {"a/rank0000/swap0", "b/rank0000/swap1"})
      EXPECT_EQ(fs::exists(scratch.path() / name), on_disk) << name;
    EXPECT_TRUE(fs::exists(scratch.path() / "a/rank0000/copies1-0"));
    const OneRank run = OneRank::create(config_of(directories, to)).value();
    EXPECT_TRUE(run.engine().resume().value());
    EXPECT_EQ(run.engine().digest().value(), digest);
  }
}

TEST(DurableDirectories, HaveAbsoluteNamesWhereTheProcessHasNoDirectory) {
  const fs::path before = fs::current_path();
  {
    const ScratchDirectory scratch;
    fs::current_path(scratch.path());
    fs::remove_all(scratch.path());
  }
  const auto refused = OneRank::create(config_of({"run"}));
  fs::current_path(before);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::not_found) << refused.error().message();
  EXPECT_NE(refused.error().message().find("relative name"), std::string::npos) << refused.error().message();
}

TEST(DurableDirectories, AreOnNoTmpfsAlsoByARelativeName) {
  if (tiers::real_file_system().type_name("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";
  const fs::path before = fs::current_path(),
                 directory = "/dev/shm/penstock-test-" + std::to_string(::getpid());
  fs::create_directory(directory);
  fs::current_path(directory);

  const auto refused = OneRank::create(config_of({"run"}));

  fs::current_path(before);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported) << refused.error().message();
  EXPECT_TRUE(fs::is_empty(directory));
  fs::remove(directory);
}

/// The first directory of one run, or a new one, and the second one of another run.
TEST(DurableDirectories, AreOfOneRunAlsoWhereOneHasNoManifests) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    const ScratchDirectory scratch;
    const fs::path a = scratch.path() / "a", b = scratch.path() / "b", c = scratch.path() / "c",
                   d = scratch.path() / "d";
    (void)go_on(config_of({a, b}, to));
    const std::string expected = go_on(config_of({c, d}, to));
    const auto before = files_below(scratch.path());

    expect_refused(config_of({a, d}, to), ErrorCode::invalid_argument,
                   {d.string(), "another run", a.string()});
    expect_refused(config_of({scratch.path() / "new", d}, to), ErrorCode::not_found, {d.string()});
    expect_refused(config_of({d, b}, to), ErrorCode::not_found, {d.string()});

    EXPECT_EQ(files_below(scratch.path()), before);
    EXPECT_EQ(OneRank::create(config_of({c, d}, to))->engine().resume().value()->step, 1u);
  }
}

TEST(DurableDirectories, HaveNoCheckpointsBeside) {
  const ScratchDirectory scratch;
  const fs::path run = scratch.path() / "run", checkpoints = scratch.path() / "checkpoints";
  {
    const OneRank one = OneRank::create(config_of({run})).value();
    one.initialize();
    ASSERT_TRUE(one.engine().save_checkpoint(checkpoints));
    const auto refused = one.engine().save_checkpoint(run / "." / "");
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << refused.error().message();
  }
  const auto before = files_below(scratch.path());

  expect_refused(config_of({checkpoints}), ErrorCode::invalid_argument, {checkpoints.string(), "latest"});
  fs::rename(checkpoints / "global_step0", scratch.path() / "away");
  expect_refused(config_of({checkpoints}), ErrorCode::invalid_argument, {checkpoints.string(), "latest"});
  fs::rename(scratch.path() / "away", checkpoints / "global_step0");
  for (const char* text : {"", "best"}) {
    std::ofstream(checkpoints / "latest", std::ios::trunc) << text;
    expect_refused(config_of({checkpoints}), ErrorCode::invalid_argument, {checkpoints.string(), "latest"});
  }
  std::ofstream(checkpoints / "latest", std::ios::trunc) << "global_step0";
  const OneRank other = OneRank::create(config_of({scratch.path() / "other"})).value();
  const auto refused = other.engine().load_checkpoint(run);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << refused.error().message();
  EXPECT_NE(refused.error().message().find("durable_directory"), std::string::npos);
  EXPECT_TRUE(std::ranges::includes(files_below(scratch.path()), before));
  // The user's own file in a run.
  std::ofstream(run / "latest") << "notes of mine";
  EXPECT_TRUE(OneRank::create(config_of({run})));
}

TEST(DurableDirectories, AreNoCheckpoint) {
  const ScratchDirectory scratch;
  {
    const OneRank run = OneRank::create(config_of({scratch.path() / "run"})).value();
    run.initialize();
    ASSERT_TRUE(run.engine().save_checkpoint(scratch.path() / "checkpoints"));
  }
  const fs::path checkpoint = scratch.path() / "checkpoints" / "global_step0";
  const auto before = files_below(scratch.path());

  for (const auto& directories : {std::vector{checkpoint}, {scratch.path() / "new", checkpoint}}) {
    expect_refused(config_of(directories), ErrorCode::invalid_argument,
                   {checkpoint.string(), "it is a checkpoint", "load_checkpoint()"});
  }

  EXPECT_EQ(files_below(scratch.path()), before);
}

TEST(DurableDirectories, HaveOneNameEach) {
  const ScratchDirectory scratch;
  const fs::path a = scratch.path() / "a", link = scratch.path() / "link";
  (void)go_on(config_of({a}));
  fs::create_directory_symlink(a, link);

  expect_refused(config_of({a, link}), ErrorCode::invalid_argument,
                 {link.string(), "the same directory as " + a.string()});
}

TEST(DurableDirectories, HaveWhatTheLastCommitRefersTo) {
  for (const bool missing : {false, true}) {
    for (const auto& [to, name] :
         {std::pair{OffloadDevice::nvme, "swap0"}, {OffloadDevice::cpu, "copies0-0"}}) {
      const ScratchDirectory scratch;
      const Config config = config_of({scratch.path() / "run"}, to);
      (void)go_on(config);
      const fs::path file = scratch.path() / "run" / "rank0000" / name, away = scratch.path() / "away";
      fs::copy_file(file, away);
      missing ? (void)fs::remove(file) : fs::resize_file(file, 4096);
      const auto before = files_below(scratch.path());

      expect_refused(config, missing ? ErrorCode::not_found : ErrorCode::truncated,
                     {file.string(), "the last commit refers to", "back"});

      EXPECT_EQ(files_below(scratch.path()), before);
      fs::remove(file);
      fs::rename(away, file);
      const OneRank run = OneRank::create(config).value();
      EXPECT_EQ(run.engine().resume().value()->step, 1u);
    }
  }
}

TEST(DurableDirectories, NoteParametersOfAnotherShape) {
  const ScratchDirectory scratch;
  ModelLayout model = two_units(), other = two_units();
  model.units[0].parameters[0].shape = {1000, 100};
  other.units[0].parameters[0].shape = {100, 1000};
  const Config config = config_of({scratch.path() / "run"});
  (void)go_on(config, model);

  for (const auto& [layout, notes] : {std::pair{&model, 0u}, {&other, 1u}}) {
    const OneRank run = OneRank::create(config, *layout).value();
    const auto resumed = run.engine().resume().value();
    ASSERT_EQ(resumed->notes.size(), notes);
    for (const std::string& note : resumed->notes)
      EXPECT_NE(note.find("weight is 100 x 1000 and was committed as 1000 x 100"), std::string::npos) << note;
  }
}

TEST(DurableDirectories, NoteOtherSettingsOfGroups) {
  const ScratchDirectory scratch;
  ModelLayout model = two_units(), other = two_units();
  other.groups[0].weight_decay = 0.5;
  const Config config = config_of({scratch.path() / "run"});
  (void)go_on(config, model);

  for (const auto& [layout, notes] : {std::pair{&model, 0u}, {&other, 1u}}) {
    const OneRank run = OneRank::create(config, *layout).value();
    const auto resumed = run.engine().resume().value();
    ASSERT_EQ(resumed->notes.size(), notes);
    EXPECT_EQ(run.engine().groups()[0].weight_decay, model.groups[0].weight_decay);
    for (const std::string& note : resumed->notes)
      EXPECT_NE(note.find("optimizer groups"), std::string::npos) << note;
  }
}

TEST(DurableDirectories, LoseWhatAReplacementHasLeft) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "run"});
  (void)go_on(config);
  const fs::path part = scratch.path() / "run" / "rank0000";
  for (const char* name :
       {"engine0-000000000007.manifest.new", "engine0.run.new", "engine1.run.new", "mine.new"})
    std::ofstream(part / name) << "x";

  (void)go_on(config);

  EXPECT_FALSE(fs::exists(part / "engine0-000000000007.manifest.new"));
  EXPECT_FALSE(fs::exists(part / "engine0.run.new"));
  EXPECT_TRUE(fs::exists(part / "engine1.run.new")) << "another engine's";
  EXPECT_TRUE(fs::exists(part / "mine.new"));
}

TEST(DurableDirectories, TakeNoCheckpoints) {
  const ScratchDirectory scratch;
  const fs::path own = scratch.path() / "own", theirs = scratch.path() / "theirs",
                 link = scratch.path() / "link", checkpoints = scratch.path() / "checkpoints";
  (void)go_on(config_of({theirs}));
  const OneRank run = OneRank::create(config_of({own})).value();
  run.initialize();
  ASSERT_TRUE(run.engine().save_checkpoint(checkpoints));
  fs::create_directory_symlink(own, link);
  const auto before = files_below(scratch.path());
  run.train();

  for (const fs::path& directory :
       {own, own / "." / "", link, own / "rank0000", theirs, theirs / "rank0000",
        checkpoints / "global_step0", checkpoints / "global_step0" / "rank0000"}) {
    const auto refused = run.engine().save_checkpoint(directory);
    ASSERT_FALSE(refused) << directory;
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << refused.error().message();
    EXPECT_NE(refused.error().message().find("another directory"), std::string::npos);
  }

  EXPECT_EQ(files_below(scratch.path()), before);
  EXPECT_TRUE(run.engine().save_checkpoint(checkpoints));
}

TEST(DurableDirectories, NameTheCheckpointThatIsNotThere) {
  const ScratchDirectory scratch;
  const fs::path checkpoints = scratch.path() / "checkpoints";
  fs::create_directory(checkpoints);
  std::ofstream(checkpoints / "latest") << "global_step77";
  const OneRank run = OneRank::create(config_of({scratch.path() / "run"})).value();

  const auto refused = run.engine().load_checkpoint(checkpoints);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::not_found) << refused.error().message();
  for (const std::string& text : {(checkpoints / "latest").string(), std::string("global_step77")})
    EXPECT_NE(refused.error().message().find(text), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace penstock::zero::test
