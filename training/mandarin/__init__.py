"""The second stage of the demonstration voice: Mandarin of a closed set of characters."""
