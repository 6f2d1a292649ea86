// Somebody else's library, with the name of ours.
extern "C" int wsync_not_the_entry() { return 1; }
