#pragma once

namespace tessera::cli {

/// Which of the processes that a launcher has started have met all others: each that has, has
/// written a byte at its number into a file that it inherits; see kMeeting.
class MeetingBoard {
 public:
  MeetingBoard();
  ~MeetingBoard();
  MeetingBoard(const MeetingBoard&) = delete;
  MeetingBoard& operator=(const MeetingBoard&) = delete;

  /// -1: there can be none, and all count as having met.
  int file() const { return file_; }
  bool has_met(int process) const;

 private:
  int file_ = -1;
};

/// What a process does that has inherited the `file`, once it has met the others.
void write_to_meeting_board(int file, int process);

}  // namespace tessera::cli
